"""The example's modules are scripts beside each other, so their folder goes on the path."""

from __future__ import annotations

import sys
from pathlib import Path

FLIGHTS = Path(__file__).parents[2] / "examples" / "flights"

sys.path.insert(0, str(FLIGHTS))
