"""A process of its own that consumes the changes of a table until it is killed.

Usage: ``python -m children.consuming '{"uri": ...}'``.
"""

from __future__ import annotations

import json
import sys
import time

import memwal

_POLL_SECONDS = 0.1


def main() -> None:
    """Read and commit again and again; a line tells that it has begun."""
    consumer = memwal.open(json.loads(sys.argv[1])["uri"]).consumer("bench")
    begun = False
    while True:
        feed = consumer.read()
        feed.to_table()
        consumer.commit(feed.token)
        if not begun:
            print("begun", flush=True)
            begun = True
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main()
