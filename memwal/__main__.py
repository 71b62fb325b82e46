"""The program ``memwal``, also as ``python -m memwal``."""

from __future__ import annotations

import atexit
import gc
import sys

import memwal
from memwal.errors import MissingExtraError
from memwal.util.optional_deps import requires_extra
from memwal.version import DISTRIBUTION, namesake


def main() -> None:
    """Run the command line; ends the process with an exit code, 2 when it is not installed."""
    # The interpreter searches all objects for cycles when it ends, most of them of the modules of
    # Lance and pydantic: a third of a second for nothing.
    atexit.register(gc.freeze)
    if "open" not in getattr(memwal, "__all__", ()):
        # Another project replaced memwal/__init__.py, or took it along when it was uninstalled.
        reason = namesake() or f"memwal/__init__.py is missing; install {DISTRIBUTION} again"
        sys.stderr.write(f"error: {reason}\n")
        sys.exit(2)
    try:
        with requires_extra("cli"):
            from memwal.cli.commands.app import run
    except MissingExtraError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
