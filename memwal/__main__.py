"""The program ``memwal``, also as ``python -m memwal``."""

from __future__ import annotations

import sys

from memwal.errors import MissingExtraError
from memwal.util.optional_deps import requires_extra


def main() -> None:
    """Run the command line; ends the process with an exit code, 2 when it is not installed."""
    try:
        with requires_extra("cli"):
            from memwal.cli.commands.app import run
    except MissingExtraError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
