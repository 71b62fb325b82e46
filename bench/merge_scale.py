"""What one divided merge takes with 8 to 512 executors: a model, as Markdown.

Usage: ``python bench/merge_scale.py [--latency MILLISECONDS]``. The seconds of a core follow from
those of the stages that ``bench/maintenance.py --only scaling --rows 10000000`` prints: of a merge
by one worker, and of one in 64 parts. The rest is assumed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass

from scale import DOLLARS_PER_CORE_HOUR, PRICES

from memwal.jobs.merge.match import divide_match
from memwal.jobs.merge.run_files import KeyFile

EXECUTORS = (8, 32, 128, 512)

BASE_ROWS = 1_000_000_000
FRAGMENT_ROWS = 1_000_000
BACKLOG_ROWS = 100_000_000
# An integer key, an integer and 16 floats.
ROW_BYTES = 80
KEY_BYTES = 8
GENERATION_BYTES = 128 << 20
# Half of the backlog replaces a row.
REPLACED_PART = 0.5
# What is stored of a row that one task found and another one deletes.
FOUND_BYTES = 25
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
    of_keys: float = 0  # of the seconds, those for the keys of the backlog


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
    """Every executor has its own fragments, or shares them with others that have other keys."""
    fragments = BASE_ROWS // FRAGMENT_ROWS
    count = max(executors, math.ceil(BACKLOG_ROWS * ROW_BYTES / TASK_BYTES))
    each = BACKLOG_ROWS // count
    files = [KeyFile(str(number), number, each, each * KEY_BYTES) for number in range(count)]
    sizes = dict.fromkeys(range(fragments), FRAGMENT_ROWS)
    key_bytes = TASK_BYTES // KEY_SHARE
    groups, parts = divide_match(sizes, files, max_tasks=executors, key_bytes=key_bytes)
    own, own_files = max(map(len, groups)), max(map(len, parts))
    keys = own_files * each
    passes = math.ceil(keys * KEY_BYTES / key_bytes)
    rows = own * FRAGMENT_ROWS
    of_fragments = own * passes * (GETS_PER_FILE + FRAGMENT_ROWS * KEY_BYTES / REQUEST_BYTES)
    of_keys = max(own_files, keys * KEY_BYTES / REQUEST_BYTES)
    read = key_seconds(keys)
    seconds = (
        read
        + passes * rows / 1e6 * SCAN_SECONDS_PER_MILLION
        + passes * rows * KEY_BYTES / BYTES_PER_SECOND
        + (of_fragments + own + of_keys / PARALLEL_READS) * latency
    )
    gets = len(groups) * len(parts) * (of_fragments + of_keys)
    if len(parts) > 1:
        found = BACKLOG_ROWS * REPLACED_PART / len(groups) * FOUND_BYTES
        seconds += 2 * found / BYTES_PER_SECOND + (own + 2 * len(parts)) * latency
        gets += len(groups) * len(parts)
    return Stage(seconds, gets, fragments, read)


def key_seconds(keys: float) -> float:
    """Read and mark keys of the backlog."""
    return keys / 1e6 * KEYS_SECONDS_PER_MILLION + keys * KEY_BYTES / BYTES_PER_SECOND


def lines(latency: float = 0.02) -> Iterator[str]:
    """Yield the table."""
    yield (
        "| executors | rewrite | match | of it the keys of the backlog | commit | all "
        "| times faster than 8 | GET | PUT | $ requests | $ cores |"
    )
    yield f"|{'---|' * 11}"
    slowest = None
    for executors in EXECUTORS:
        rewriting, matching = rewrite(executors, latency), match(executors, latency)
        fragments = BASE_ROWS / FRAGMENT_ROWS + BACKLOG_ROWS / FRAGMENT_ROWS
        commits = fragments * DRIVER_SECONDS_PER_FRAGMENT + 10 * latency
        total = rewriting.seconds + matching.seconds + commits
        slowest = slowest or total
        gets, puts = rewriting.gets + matching.gets, rewriting.puts + matching.puts
        requests = gets * PRICES["GET"] + puts * PRICES["PUT"]
        cores = executors * total / 3_600 * DOLLARS_PER_CORE_HOUR
        yield (
            f"| {executors} | {rewriting.seconds:,.0f} s | {matching.seconds:,.0f} s "
            f"| {matching.of_keys:,.0f} s | {commits:,.1f} s | {total:,.0f} s "
            f"| {slowest / total:.1f} | {gets:,.0f} | {puts:,.0f} | {requests:.2f} | {cores:.2f} |"
        )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency", type=float, default=20, help="of a request, in milliseconds")
    for line in lines(parser.parse_args().latency / 1e3):
        print(line)


if __name__ == "__main__":
    main()
