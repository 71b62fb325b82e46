"""A process of the load.

Usage: ``python bench/_load_child.py '{"do": "produce" or "read", "uri": ..., ...}'``.
"""

from __future__ import annotations

import json
import sys

from _load_producer import produce
from _load_reader import read


def main() -> None:
    """Do what the argument says."""
    task = json.loads(sys.argv[1])
    {"produce": produce, "read": read}[task["do"]](task)


if __name__ == "__main__":
    main()
