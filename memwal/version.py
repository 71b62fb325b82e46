"""The version of memwal, for the package that is built and for whoever asks."""

from __future__ import annotations

__version__ = "0.1.0"
