"""A process of its own that appends a row to a table ten times a second, until it is ended.

Usage: ``python -m children.appending URI``. Prints a line after the first commit.
"""

from __future__ import annotations

import sys
import time

import lance

_SECONDS = 0.1


def main() -> None:
    """Append copies of a row of the table, whose keys no merge looks for."""
    uri = sys.argv[1]
    row = lance.dataset(uri).head(1)
    following = time.monotonic()
    while True:
        lance.write_dataset(row, uri, mode="append")
        print("appended", flush=True)
        following += _SECONDS
        time.sleep(max(following - time.monotonic(), 0))


if __name__ == "__main__":
    main()
