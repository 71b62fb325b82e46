"""The examples' modules are scripts beside each other, so their folders go on the path."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
FLIGHTS = EXAMPLES / "flights"

for name in ("flights", "fastapi", "streaming", "cdc", "rag", "embeddings"):
    sys.path.insert(0, str(EXAMPLES / name))
