"""Plays around a Lance table without MemWAL: clients of LanceDB, and memwal's jobs beside them.

Two processes append by LanceDB, one deletes, one runs LanceDB's ``optimize()``, one runs memwal's
jobs, and one reads by memwal, Lance and LanceDB. All of them are killed again and again. A process
notes each call before it makes it, and again when it is acknowledged.
``PYTHONPATH=tests python -m histories.plain SEED [SECONDS]`` runs one play.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import lance
import lancedb
import numpy as np
import pyarrow as pa
from support.oracles.truth import Truth

import memwal
from memwal.errors import MemWalError

BATCH = 4
WORDS = 5
SIZE = 4
ROLES = ("append", "append", "delete", "optimize", "jobs", "read")
# Longer than any read of another client takes: what it reads is not collected.
RETENTION_SECONDS = 15.0

# A play in which less happened goes on for some time: the machine is busy.
LEAST_KILLS = 3
LEAST_ADDS = 10
_MORE_SECONDS = 200


class BrokenPromise(AssertionError):
    """Rows were lost, came back or were repeated; or readers disagree."""


def rows_of(ids: range) -> pa.Table:
    """Return rows whose other columns follow from their id."""
    vectors = np.repeat(np.array(ids, np.float32), SIZE)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": [f"word{number % WORDS} of row" for number in ids],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors), SIZE),
        }
    )


class Notes:
    """Notes of one process: a line when a call begins, and one when it is acknowledged."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def call(self, kind: str, first: int = 0) -> Iterator[None]:
        """Note a call; one that fails has an unknown outcome."""
        self._note("begin", kind, first)
        try:
            yield
        except (MemWalError, OSError, RuntimeError, ValueError) as error:
            self._note("fail", kind, type(error).__name__)
        else:
            self._note("done", kind, first)

    def _note(self, *words: object) -> None:
        with self._path.open("a") as file:
            print(*words, file=file)


def live(role: str, folder: Path, number: int, seed: int) -> None:
    """Do what a role does until killed."""
    dice, notes = Random(seed), Notes(folder / f"{number}.{role}.notes")
    uri, first = folder / "t.lance", (number << 32) + BATCH * (seed % (1 << 20)) * 1000
    database = lancedb.connect(folder)
    while True:
        theirs = database.open_table("t")
        match role:
            case "append":
                with notes.call("add", first):
                    theirs.add(rows_of(range(first, first + BATCH)))
                first += BATCH
            case "delete":
                known = sorted(noted(folder)["add"])
                if known:
                    gone = dice.choice(known)
                    with notes.call("delete", gone):
                        theirs.delete(f"id >= {gone} AND id < {gone + BATCH}")
            case "optimize":
                with notes.call("optimize"):
                    theirs.optimize()
                time.sleep(dice.uniform(0, 0.5))
            case "jobs":
                _run_job(memwal.open(uri), dice, notes)
            case "read":
                with notes.call("read"):
                    check(folder, exactly=False)
        time.sleep(dice.uniform(0, 0.05))


def _run_job(table: memwal.Table, dice: Random, notes: Notes) -> None:
    jobs: dict[str, Callable[[], object]] = {
        "compact": lambda: table.compact(target_rows=dice.choice([40, 1000]), min_fragments=2),
        "index": table.build_indexes,
        "gc": lambda: table.collect_garbage(
            dry_run=False,
            grace_seconds=0,
            retention_seconds=RETENTION_SECONDS,
            version_retention_seconds=RETENTION_SECONDS,
        ),
        "status": table.status,
    }
    kind = dice.choice(list(jobs))
    with notes.call(kind):
        jobs[kind]()


def noted(folder: Path, state: str = "done") -> dict[str, set[int]]:
    """Return the first ids of the calls that were acknowledged, or begun, by their kinds."""
    found: dict[str, set[int]] = {"add": set(), "delete": set()}
    for path in folder.glob("*.notes"):
        for line in path.read_text().splitlines():
            parts = line.split()
            if len(parts) == 3 and parts[0] == state and parts[2].isdigit():
                found.setdefault(parts[1], set()).add(int(parts[2]))
    return found


def check(folder: Path, *, exactly: bool) -> None:
    """Compare what readers see with the notes before and after; ``exactly`` if nothing goes on."""
    done = noted(folder)
    base = lance.dataset(folder / "t.lance")
    table = memwal.open(folder / "t.lance")
    by_reader = {
        "memwal": table.at(base.version).scan(columns=["id", "text"]).to_table(),
        "lance": base.to_table(columns=["id", "text"]),
    }
    if exactly:
        by_reader["lancedb"] = (
            (lancedb.connect(folder).open_table("t").search().select(["id", "text"]).limit(10**7))
            .to_arrow()
            .select(["id", "text"])
        )
    begun = noted(folder, "begin")
    for name, found in by_reader.items():
        seen = found.column("id").to_pylist()
        check_batches(name, seen, done, begun)
    if not exactly:
        return
    for filter in ("id % 3 = 0", f"id = {min(seen, default=0)}"):
        plain = base.scanner(columns=["id"], filter=filter, use_scalar_index=False).to_table()
        ours = table.scan(columns=["id"], filter=filter).to_table()
        if sorted(plain["id"].to_pylist()) != sorted(ours["id"].to_pylist()):
            raise BrokenPromise(f"an index answers otherwise for {filter}")
    words = table.search_text("word3", k=None).to_table()
    if set(words["id"].to_pylist()) != {i for i in seen if i % WORDS == 3}:
        raise BrokenPromise("the text index answers otherwise")
    if findings := table.verify(deep=True).findings:
        raise BrokenPromise(f"verify finds {findings}")


def check_batches(
    name: str,
    ids: Sequence[int],
    done: Mapping[str, set[int]],
    begun: Mapping[str, set[int]],
    *,
    complete: bool = True,
) -> None:
    """Compare the rows of a reader with the notes before and after it read.

    ``complete`` if it must see all that was acknowledged.
    """
    twice = [number for number, count in Counter(ids).items() if count > 1]
    if twice:
        raise BrokenPromise(f"{name}: {len(twice)} rows are there twice: {sorted(twice)[:3]}")
    firsts = {number - number % BATCH for number in ids}
    if len(ids) != BATCH * len(firsts):
        raise BrokenPromise(f"{name}: a part of an append is there")
    if complete and (back := firsts & done["delete"]):
        raise BrokenPromise(f"{name}: deleted rows are there: {sorted(back)[:3]}")
    truth: Truth[str] = Truth()
    for kind, value in (("add", "rows"), ("delete", None)):
        for first in begun[kind]:
            writes = truth.begin({first: value})
            if complete and first in done[kind]:
                truth.acknowledge(writes)
    try:
        truth.check(dict.fromkeys(firsts, "rows"), name)
    except AssertionError as error:
        raise BrokenPromise(str(error)) from None


def run(seed: int, seconds: float) -> Counter[str]:
    """Run a play. Returns how many calls of each kind were acknowledged, and the kills."""
    return play("plain", ROLES, _create, _finish, seed, seconds)


def _finish(folder: Path) -> None:
    table = memwal.open(folder / "t.lance")
    table.compact(min_fragments=2)
    table.build_indexes()
    check(folder, exactly=True)


def play(
    module: str,
    roles: Sequence[str],
    create: Callable[[Path], None],
    finish: Callable[[Path], None],
    seed: int,
    seconds: float,
) -> Counter[str]:
    """Make a table, let processes live and kill them, and look at what is left.

    ``module`` is that of this package whose ``live`` the processes run.
    """
    dice, done = Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory(prefix=f"memwal-{module}-") as name:
        folder = Path(name)
        create(folder)

        def size(number: int) -> int:
            return sum(path.stat().st_size for path in folder.glob(f"{number}.*.notes"))

        def start(number: int) -> subprocess.Popen[bytes]:
            sizes[number] = size(number)
            return _start(module, roles[number], folder, number, dice)

        def lively() -> bool:
            notes = "".join(path.read_text() for path in folder.glob("*.notes"))
            return done["kill"] > LEAST_KILLS and notes.count("done add") > LEAST_ADDS

        sizes = dict[int, int]()
        children = {number: start(number) for number in range(len(roles))}
        try:
            end = time.monotonic() + seconds
            while (now := time.monotonic()) < end or (now < end + _MORE_SECONDS and not lively()):
                time.sleep(dice.uniform(0.5, 5))
                number = dice.randrange(len(roles))
                if children[number].poll() is not None:
                    raise BrokenPromise((folder / f"{number}.err").read_text()[-2000:])
                if size(number) == sizes[number]:
                    # On a busy machine it is still starting.
                    continue
                children[number].kill()
                children[number].wait()
                done["kill"] += 1
                children[number] = start(number)
        finally:
            for child in children.values():
                child.send_signal(signal.SIGKILL)
                child.wait()
        finish(folder)
        lines = [line for path in folder.glob("*.notes") for line in path.read_text().splitlines()]
        ended = (line.split() for line in lines if line.startswith(("done", "fail")))
        # The last line of a process that was killed may be cut.
        done.update(" ".join(words[:2]) for words in ended if len(words) == 3)
    return done


def _create(folder: Path) -> None:
    table = lancedb.connect(folder).create_table("t", rows_of(range(40 * BATCH)))
    notes = Notes(folder / "first.notes")
    for first in range(0, 40 * BATCH, BATCH):
        with notes.call("add", first):
            pass
    table.create_index("id", config=lancedb.index.BTree())
    table.create_index("text", config=lancedb.index.FTS())
    table.create_index("v", config=lancedb.index.IvfFlat(num_partitions=2))


def _start(
    module: str, role: str, folder: Path, number: int, dice: Random
) -> subprocess.Popen[bytes]:
    words = [role, str(folder), str(number), str(dice.getrandbits(20))]
    with (folder / f"{number}.err").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", f"histories.{module}", "live", *words],
            stderr=errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )


if __name__ == "__main__":
    if sys.argv[1] == "live":
        live(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    else:
        print(run(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 40.0))
