"""A process of the load.

Usage: ``python -m children.load '{"do": "produce" or "read", "uri": ..., ...}'``.
"""

from __future__ import annotations

import json
import sys

from load_test.producer import produce
from load_test.reader import read


def main() -> None:
    """Do what the argument says."""
    task = json.loads(sys.argv[1])
    {"produce": produce, "read": read}[task["do"]](task)


if __name__ == "__main__":
    main()
