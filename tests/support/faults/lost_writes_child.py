"""A process some of whose writes fail: ``lost_writes_child.py URI SEED ROUNDS [--unseen]``.

It upserts, flushes, merges, indexes and compacts, and goes on after each error. Prints the last
acknowledged value of each key, and how many flushes and jobs succeeded and failed. With
``--unseen``, nothing looks at files before they are named.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Callable

from support.data.tables import rows

import memwal
from memwal.base_table import named_files
from memwal.errors import MemWalError
from memwal.jobs.index import job
from memwal.lsm.flush import generation


def main(uri: str, seed: int, rounds: int) -> None:
    """Work on a table."""
    dice = random.Random(seed)
    table = memwal.open(uri)
    counts: Counter[str] = Counter()
    acknowledged: dict[int, int] = {}

    def run(name: str, step: Callable[[], object]) -> None:
        try:
            step()
        except MemWalError as error:
            counts[f"{name} failed"] += 1
            print(name, type(error).__name__, error, file=sys.stderr)
        else:
            counts[name] += 1

    writer = table.writer(options=memwal.WriterOptions(flush_attempts=2))
    for number in range(rounds):
        values = dict.fromkeys(dice.sample(range(500), 50), number)
        writer.upsert(rows(values))
        acknowledged |= values
        run("flush", writer.flush)
        if number % 3 == 2:
            run("merge", table.merge)
            run("index", table.build_indexes)
        if number % 7 == 6:
            run("compact", lambda: table.compact(min_fragments=2))
    run("close", writer.close)
    print(json.dumps({"rows": acknowledged, "counts": counts}))


def name_files_unseen() -> None:
    """Take the safeguard out."""
    for module in (named_files, generation, job):
        module.refuse = lambda bad: None


if __name__ == "__main__":
    if sys.argv[4:] == ["--unseen"]:
        name_files_unseen()
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
