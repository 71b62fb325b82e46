"""The version of memwal, for the package that is built and for whoever asks."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
