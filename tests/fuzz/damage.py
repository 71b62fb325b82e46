"""Whole tables with one file damaged, and everything that is done to read a table.

``python -m fuzz.damage SEED COUNT``, as many as you like.
"""

import argparse
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from fuzz import byte_changes, samples
from fuzz.children import Progress
from support.data.tables import listing
from support.oracles.failures import unexpected
from typer.testing import CliRunner

import memwal
from memwal.cli.commands.app import app
from memwal.errors import MemWalError
from memwal.jobs.merge.job import plan_merge
from memwal.quality.quarantine import Quarantine
from memwal.search.text.query import MatchQuery

TABLES: Final = ("plain", "collected", "searched", "tenants", "divided_anew", "typed", "expressed")

_KINDS: Final = (
    ("version hint", r"/manifest/version_hint\.json$"),
    ("region manifest", r"/manifest/\d+\.binpb$"),
    ("log entry", r"/wal/\d+\.arrow$"),
    ("bloom filter", r"bloom_filter\.bin$"),
    ("key index", r"/_pk_index/"),
    ("generation's index", r"_gen_\d+/_indices/"),
    ("generation's data", r"_gen_\d+/data/"),
    ("generation's manifest", r"_gen_\d+/_versions/\d+\.manifest$"),
    ("generation, other files", r"_gen_\d+/"),
    ("quarantine", r"__quarantine"),
    ("region snapshot", r"/_indices/.*/index\.lance$"),
    ("index", r"/_indices/"),
    ("deletions", r"/_deletions/"),
    ("data", r"/data/"),
    ("table manifest", r"/_versions/\d+\.manifest$"),
    ("tag", r"/_refs/"),
    ("other files", r""),
)


def kind_of(path: str) -> str:
    """What a file of a table is."""
    return next(kind for kind, pattern in _KINDS if re.search(pattern, path))


Damage = Callable[[Random, Path, list[Path]], None]


def _rewritten(change: byte_changes.Change) -> Damage:
    def damage(dice: Random, path: Path, others: list[Path]) -> None:
        data = path.read_bytes()
        path.write_bytes(change(dice, data, [data, dice.choice(others).read_bytes()]))

    return damage


def _emptied(dice: Random, path: Path, others: list[Path]) -> None:
    path.write_bytes(b"")


def _zeroed(dice: Random, path: Path, others: list[Path]) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _removed(dice: Random, path: Path, others: list[Path]) -> None:
    path.unlink()


def _swapped(dice: Random, path: Path, others: list[Path]) -> None:
    """What stands in another file of the same kind, or of any."""
    alike = [other for other in others if kind_of(str(other)) == kind_of(str(path))]
    path.write_bytes(dice.choice(alike if alike and dice.random() < 0.7 else others).read_bytes())


def _a_folder(dice: Random, path: Path, others: list[Path]) -> None:
    path.unlink()
    path.mkdir()


def _a_pipe(dice: Random, path: Path, others: list[Path]) -> None:
    path.unlink()
    os.mkfifo(path)


def _a_loop(dice: Random, path: Path, others: list[Path]) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _a_link_to_nowhere(dice: Random, path: Path, others: list[Path]) -> None:
    path.unlink()
    path.symlink_to("/nowhere/at/all")


DAMAGES: Final[dict[str, Damage]] = {
    "empty": _emptied,
    "zeros": _zeroed,
    "removed": _removed,
    "swapped": _swapped,
    "cut": _rewritten(byte_changes.cut),
    "flipped": _rewritten(byte_changes.flip),
    "number": _rewritten(byte_changes.number),
    "filled": _rewritten(byte_changes.fill),
    "spliced": _rewritten(byte_changes.splice),
    "a folder": _a_folder,
    "a loop of links": _a_loop,
    "a link to nowhere": _a_link_to_nowhere,
}


@dataclass(frozen=True)
class Case:
    """A table with one file damaged.

    Attributes
    ----------
    uri : str
    name : str
        Of the golden table.
    kind, path, damage : str
        Of the file, relative to the folder of the table, and what was done to it.
    """

    uri: str
    name: str
    kind: str
    path: str
    damage: str

    def __str__(self) -> str:
        return f"{self.name}, {self.kind} {self.path}: {self.damage}"


@contextmanager
def damaged(
    seed: str, number: int, *, kind: str | None = None, table: str | None = None
) -> Iterator[Case]:
    """A case that a seed and a number decide about, as far as it is not told."""
    dice = Random(f"{seed}/{number}")
    with tempfile.TemporaryDirectory(prefix="damaged-") as folder:
        fitting = [name for name in TABLES if kind is None or kind in _kinds_of(name)]
        name = table or dice.choice(fitting)
        root = samples.extract(name, Path(folder))
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        # Every kind as often as any other, however many files there are of it.
        kinds = [kind] if kind is not None else sorted(_kinds_of(name))
        kind = dice.choice(kinds)
        path = dice.choice([path for path in files if kind_of(str(path)) == kind])
        how = dice.choice(sorted(DAMAGES))
        DAMAGES[how](dice, path, [other for other in files if other != path])
        yield Case(str(root), name, kind, str(path.relative_to(folder)), how)


@cache
def _kinds_of(name: str) -> set[str]:
    """Kinds of files that a golden table has."""
    mine = (f"{name}/", f"{name}__")
    return {kind_of(path) for path in samples.golden_files() if path.startswith(mine)}


def _open(case: Case) -> memwal.Table:
    return memwal.open(case.uri)


@cache
def _keys(name: str) -> pa.Table:
    """Keys of a golden table as it is when nothing is damaged."""
    with tempfile.TemporaryDirectory() as folder:
        table = memwal.open(str(samples.extract(name, Path(folder))))
        return table.scan(columns=list(table.primary_key)).to_table()


@cache
def _regions(name: str) -> list[UUID]:
    with tempfile.TemporaryDirectory() as folder:
        return memwal.open(str(samples.extract(name, Path(folder)))).region_ids()


def _command(*words: str) -> None:
    """A command in this process, as a shell would run it."""
    found = CliRunner().invoke(app, list(words), catch_exceptions=True)
    if (error := unexpected(found)) is not None:
        raise AssertionError(f"memwal {' '.join(words)}: {found.output}") from error


def _replay(case: Case) -> pa.Table:
    """Claim every region, and see what a writer sees."""
    with _open(case).writer() as writer:
        writer.claim()
        return writer.scan().to_table()


def _quarantined(case: Case) -> pa.Table:
    return Quarantine.of(_open(case).location).read()


def _by_key(case: Case, rows: pa.Table) -> pa.Table:
    key = [name for name in _keys(case.name).column_names if name in rows.column_names]
    return rows.sort_by([(name, "ascending") for name in key]).replace_schema_metadata()


HOUR: Final = timedelta(hours=1)
READS: Final[dict[str, Callable[[Case], Any]]] = {
    "scan": lambda case: _by_key(case, _open(case).scan().to_table()),
    "count": lambda case: _open(case).scan().count_rows(),
    "stale scan": lambda case: _open(case).at_most(10_000 * 24 * HOUR).scan().to_table(),
    "explain": lambda case: str(_open(case).scan().explain()),
    "lookup": lambda case: _by_key(case, _open(case).lookup(_keys(case.name)).to_table()),
    "status": lambda case: _open(case).status().backlog_rows,
    "verify": lambda case: _open(case).verify().to_dict(),
    "plan of a merge": lambda case: plan_merge(_open(case).location),
    "collection": lambda case: _open(case).collect_garbage(dry_run=True, explain=True),
    "regions": lambda case: _open(case).region_ids(),
    "steps": lambda case: _open(case).applied("source"),
    "quarantine": _quarantined,
    "memwal status": lambda case: _command("status", case.uri),
    "memwal verify": lambda case: _command("verify", case.uri),
    "memwal gc": lambda case: _command("gc", case.uri, "--explain"),
    "memwal inspect details": lambda case: _command("inspect", "details", case.uri),
    "memwal inspect manifest": lambda case: _each_region("manifest", case),
    "memwal inspect wal": lambda case: _each_region("wal", case),
}
"""Acts that change nothing."""

SEARCHES: Final[dict[str, Callable[[Case], Any]]] = {
    "search": lambda case: _open(case).search([0.5] * 8, column="vector", k=5).to_table(),
    "text search": lambda case: _open(case).search_text("word17", column="text", k=5).to_table(),
    "fuzzy search": lambda case: (
        _open(case).search_text(MatchQuery("wrd17", "text", fuzziness=1), k=5).to_table()
    ),
}
"""The same, where there is something to search."""

WRITES: Final[dict[str, Callable[[Case], Any]]] = {
    "replay": lambda case: _by_key(case, _replay(case)),
    "merge": lambda case: _open(case).merge().warnings,
}
"""Acts that change what they cannot leave as it is."""


def _each_region(what: str, case: Case) -> None:
    for region_id in _regions(case.name):
        _command("inspect", what, case.uri, str(region_id))


NEVER_NEEDED: Final = frozenset({"version hint", "region snapshot"})
"""Kinds of files without which every answer is the same."""


class Found(AssertionError):
    """Something that a damaged table must not lead to."""


def check(case: Case) -> Iterator[tuple[str, str]]:
    """Do everything to a damaged table; yields each act and what came of it.

    Raises
    ------
    Found
        An act ended in another error than ours, or wrote, or deleted, or needed what it need not.
    """
    folder = Path(case.uri).parent
    reads = {**READS, **SEARCHES} if case.name == "searched" else READS
    before = _without_marks(folder)
    for act, do in {**reads, **WRITES}.items():
        outcome = _outcome(case, act, do)
        yield act, outcome
        # A hint that names a version which is not there tells that the newest one is lost.
        is_lost = case.kind == "version hint" and "names version" in outcome
        if case.kind in NEVER_NEEDED and outcome != "right" and not is_lost:
            raise Found(f"{case}: {act}: {outcome}")
        after = _without_marks(folder)
        if act in reads and after != before:
            raise Found(f"{case}: {act} wrote or deleted {_difference(before, after)}")
        if gone := before.keys() - after.keys():
            raise Found(f"{case}: {act} deleted {sorted(gone)}")
    others = {path.name for path in folder.iterdir()} - {case.name}
    if not others <= {f"{case.name}__quarantine.lance"}:
        raise Found(f"{case}: {sorted(others)} stand beside the table")


def _outcome(case: Case, act: str, do: Callable[[Case], Any]) -> str:
    try:
        found = do(case)
    except MemWalError as error:
        if len(str(error)) < 20:
            raise Found(f"{case}: {act} says too little: {error!r}") from error
        return f"{type(error).__name__}: {error}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise Found(f"{case}: {act}: {type(error).__name__}: {error}") from error
    whole = _answer(case.name, act)
    return "right" if whole is None or _same(found, whole) else "other"


def _same(found: Any, whole: Any) -> bool:
    return bool(found.equals(whole)) if isinstance(whole, pa.Table) else found == whole


COMPARED: Final = ("scan", "count", "lookup", "replay")


@cache
def _answer(name: str, act: str) -> Any:
    """What an act gives when nothing is damaged; None where that is not compared."""
    if act not in COMPARED:
        return None
    with tempfile.TemporaryDirectory() as folder:
        root = samples.extract(name, Path(folder))
        return {**READS, **WRITES}[act](Case(str(root), name, "", "", "nothing"))


def _without_marks(folder: Path) -> dict[str, tuple[int, int]]:
    """List a folder as :func:`listing` does, without the region marks that a merge plan renews."""
    return {key: found for key, found in listing(folder).items() if "/_memwal_regions/" not in key}


def _difference(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return sorted({path for path, _ in before.items() ^ after.items()})


def main() -> int:
    """Damage tables, and tell what came of it."""
    parser = argparse.ArgumentParser(description="Damage a file of a table, and read the table.")
    parser.add_argument("seed")
    parser.add_argument("count", type=int)
    parser.add_argument("--start", type=int, default=0, metavar="NUMBER", help="the first case")
    parser.add_argument("--progress", metavar="FILE", help="where the number of the case stands")
    parser.add_argument("--kind", help="only files of this kind")
    parser.add_argument("--verbose", action="store_true", help="tell of every act")
    given = parser.parse_args()
    progress = Progress(given.progress)
    outcomes: Counter[tuple[str, str]] = Counter()
    for number in range(given.start, given.start + given.count):
        progress.note(number)
        with damaged(given.seed, number, kind=given.kind) as case:
            for act, outcome in check(case):
                outcomes[case.kind, outcome.partition(":")[0]] += 1
                if given.verbose:
                    print(f"{number} {case} | {act} | {outcome[:300]}", flush=True)
    for (kind, outcome), times in sorted(outcomes.items()):
        print(f"{kind:24} {outcome:24} {times}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
