"""Options of the applications that merge."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final

from memwal.maintenance.merge import DEFAULT_COMMIT_BYTES
from memwal.quality.rules import read_rules
from memwal.spark.application import Application, positive_int

# Every task commits to the same table, and commits wait for one another.
MOST_TASKS: Final = 8


def add_merge_options(parser: ArgumentParser) -> None:
    """Add what bounds a merge, and what its rows are held against."""
    parser.add_argument(
        "--commit-bytes",
        type=positive_int,
        default=DEFAULT_COMMIT_BYTES,
        metavar="N",
        help="bytes in memory that go into one commit, which bounds a worker's memory "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--quality",
        metavar="JSON",
        help="rules of quality as a policy has them, or @FILE with them (default: all rows enter)",
    )
    parser.add_argument(
        "--max-tasks",
        type=positive_int,
        metavar="N",
        help="tasks that the regions are divided into at most "
        f"(default: what runs at once, up to {MOST_TASKS})",
    )


def merge_arguments(application: Application) -> dict[str, Any]:
    """What these options mean for ``Table.merge`` and ``Table.checkpoint``."""
    options = application.options
    return {
        "commit_bytes": options.commit_bytes,
        "quality": read_rules(options.quality) if options.quality else None,
        "max_tasks": options.max_tasks or min(application.parallelism, MOST_TASKS),
        "run": application.run,
    }
