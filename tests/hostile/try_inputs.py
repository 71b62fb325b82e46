"""Trying hostile input for as long as one likes.

``python -m hostile.try_inputs AREA [EXAMPLES] [SEED]`` tries one area, or ``all`` of them.
"""

import os
import sys
import tempfile
from pathlib import Path

from hostile.areas import AREAS
from hostile.harness import survey

_SHOWN = 300


def main(wanted: str, examples: int, number: int) -> int:
    """Try areas, tell of every place that broke, and return how many did."""
    broken = 0
    for area in AREAS:
        if wanted not in ("all", area.name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = survey(area, Path(folder), examples=examples, number=number)
        print(f"{area}: {examples} inputs of seed {number}, {len(found)} places broke", flush=True)
        for place, value in found.items():
            print(f"  {place}\n    with {repr(value)[:_SHOWN]}", flush=True)
        broken += len(found)
    return broken


if __name__ == "__main__":
    sys.exit(
        main(
            sys.argv[1],
            int(sys.argv[2]) if len(sys.argv) > 2 else 1_000,
            int(sys.argv[3]) if len(sys.argv) > 3 else int.from_bytes(os.urandom(4)),
        )
    )
