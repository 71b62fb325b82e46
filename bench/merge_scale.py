"""What one divided merge takes with 8 to 512 executors: a model, as Markdown.

Usage: ``python bench/merge_scale.py [--latency MILLISECONDS]``. The seconds of a core follow from
those of the stages that ``bench/maintenance.py --only scaling --rows 10000000`` prints: of a merge
by one worker, and of one in 64 parts, each of whose tasks reads all keys. The rest is assumed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass

from scale import DOLLARS_PER_CORE_HOUR, PRICES

EXECUTORS = (8, 32, 128, 512)

BASE_ROWS = 1_000_000_000
FRAGMENT_ROWS = 1_000_000
BACKLOG_ROWS = 100_000_000
# An integer key, an integer and 16 floats.
ROW_BYTES = 80
KEY_BYTES = 8
GENERATION_BYTES = 128 << 20
# Of a task, as `commit_bytes` has it; an eighth is for keys, with which it compares at a time.
TASK_BYTES = 1 << 30
KEY_SHARE = 8

# Of one core, measured.
REWRITE_SECONDS_PER_MILLION = 0.32
SCAN_SECONDS_PER_MILLION = 0.036
KEYS_SECONDS_PER_MILLION = 0.034
DRIVER_SECONDS_PER_FRAGMENT = 0.002

# Of one executor of one core at the store.
BYTES_PER_SECOND = 100e6
REQUEST_BYTES = 8 << 20
GETS_PER_FILE = 4
# Files of keys that a task reads at once.
PARALLEL_READS = 8


@dataclass(frozen=True, slots=True)
class Stage:
    """Work of one stage, divided among executors."""

    seconds: float  # of the longest executor
    gets: float
    puts: float


def rewrite(executors: int, latency: float) -> Stage:
    """Every executor reads and writes the same part of the backlog."""
    tasks = max(executors, math.ceil(BACKLOG_ROWS * ROW_BYTES / TASK_BYTES))
    rounds = math.ceil(tasks / executors)
    size = BACKLOG_ROWS * ROW_BYTES
    generations = size / GENERATION_BYTES
    gets = GETS_PER_FILE * max(generations, tasks) + size / REQUEST_BYTES
    puts = 2 * tasks + size / REQUEST_BYTES
    rows = BACKLOG_ROWS / tasks
    each = (
        rows / 1e6 * REWRITE_SECONDS_PER_MILLION
        + 2 * rows * ROW_BYTES / BYTES_PER_SECOND
        + (gets + puts) / tasks * latency
    )
    return Stage(rounds * each, gets, puts)


def match(executors: int, latency: float) -> Stage:
    """Every executor has its own fragments, and reads all keys of the backlog."""
    fragments = BASE_ROWS // FRAGMENT_ROWS
    files = max(executors, math.ceil(BACKLOG_ROWS * ROW_BYTES / TASK_BYTES))
    passes = math.ceil(BACKLOG_ROWS * KEY_BYTES / (TASK_BYTES / KEY_SHARE))
    own = math.ceil(fragments / executors)
    rows = own * FRAGMENT_ROWS
    of_fragment = GETS_PER_FILE + FRAGMENT_ROWS * KEY_BYTES / REQUEST_BYTES
    of_keys = max(files, BACKLOG_ROWS * KEY_BYTES / REQUEST_BYTES)
    seconds = (
        passes * rows / 1e6 * SCAN_SECONDS_PER_MILLION
        + BACKLOG_ROWS / 1e6 * KEYS_SECONDS_PER_MILLION
        + (passes * rows + BACKLOG_ROWS) * KEY_BYTES / BYTES_PER_SECOND
        + (own * (passes * of_fragment + 1) + of_keys / PARALLEL_READS) * latency
    )
    gets = passes * fragments * of_fragment + executors * of_keys
    return Stage(seconds, gets, fragments)


def lines(latency: float) -> Iterator[str]:
    """Yield the table."""
    yield (
        "| executors | rewrite | match | of it the keys of the backlog | commits | all "
        "| times faster than 8 | GET | PUT | $ requests | $ cores |"
    )
    yield f"|{'---|' * 11}"
    slowest = None
    for executors in EXECUTORS:
        rewriting, matching = rewrite(executors, latency), match(executors, latency)
        fragments = BASE_ROWS / FRAGMENT_ROWS + BACKLOG_ROWS / FRAGMENT_ROWS
        commits = fragments * DRIVER_SECONDS_PER_FRAGMENT + 20 * latency
        total = rewriting.seconds + matching.seconds + commits
        slowest = slowest or total
        keys = BACKLOG_ROWS / 1e6 * KEYS_SECONDS_PER_MILLION
        keys += BACKLOG_ROWS * KEY_BYTES / BYTES_PER_SECOND
        gets, puts = rewriting.gets + matching.gets, rewriting.puts + matching.puts
        requests = gets * PRICES["GET"] + puts * PRICES["PUT"]
        cores = executors * total / 3_600 * DOLLARS_PER_CORE_HOUR
        yield (
            f"| {executors} | {rewriting.seconds:,.0f} s | {matching.seconds:,.0f} s "
            f"| {keys:,.0f} s | {commits:,.1f} s | {total:,.0f} s | {slowest / total:.1f} "
            f"| {gets:,.0f} | {puts:,.0f} | {requests:.2f} | {cores:.2f} |"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=20, help="of a request, in milliseconds")
    for line in lines(parser.parse_args().latency / 1e3):
        print(line)


if __name__ == "__main__":
    main()
