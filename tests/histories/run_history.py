"""A history of real processes: who is there, what happens to them, and what must be true.

``PYTHONPATH=tests python -m histories.run_history SEED [SECONDS [PLAY]]`` runs one. The seed
decides who is there and what is done to them when; the machine decides the rest.
"""

import argparse
import itertools
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from uuid import uuid4

import lance
from histories.checker import check
from histories.events import Level, Records, read_records
from histories.foreign import INDEX, may_write_directly, settle
from histories.nemesis import LOST_WRITES, Child, EndedByItselfError, Nemesis
from histories.others import collector, jobs, reader
from histories.process import BASE, OWN, Process, Told, now, seen_of
from histories.writers import ours
from support.data.generic_store import REGION, STORE_SCHEMA
from support.data.tables import SCHEMA
from support.faults.full_disk import FullDisk
from support.faults.lost_writes import bad_files
from support.oracles import native

import memwal
from memwal.jobs.options import VerifyOptions
from memwal.jobs.verify import verify
from memwal.jobs.verify.findings import FindingSeverity
from memwal.lsm.region_places import router_in_force
from memwal.lsm.wal.claim import claim_region

KEYS = 24
PLAYS = ("kills", "moves", "foreign")
"""Kinds of plays: kills and stops; also moves, missing parts and full disks; also clients that know
nothing of memwal."""

FILE_VERSIONS = ("2.0", "2.1", "2.2", "2.3")


@dataclass(frozen=True)
class Cast:
    """Who is there.

    Attributes
    ----------
    roles : tuple of str
        A process each.
    here : tuple of str
        More of them, in this process, to which nothing happens.
    regions : int
    grace : float
        Of the collectors, in seconds.
    retention : float
        Of the collectors, in seconds.
    pause : float
        Seconds between two things that are done to processes, on average.
    clocks : bool
        Whether the time of day jumps.
    rest : float
        How much longer than usual everybody rests between two things.
    stable_row_ids : bool
        Of the base table.
    file_version : str
        Of the files of the base table.
    moves : bool
        Whether parts of the table are away for a while; see :class:`histories.nemesis.Nemesis`.
    lost_writes : bool
        Whether some writes inside Lance fail, where memwal's code has to notice.
    foreign_names : bool
        Whether another client has made the regions, by names of its own.
    without : str
        A safeguard that the processes do without.
    """

    roles: tuple[str, ...]
    here: tuple[str, ...] = ()
    regions: int = 2
    grace: float = 2.0
    retention: float = 0.0
    pause: float = 1.5
    clocks: bool = False
    rest: float = 1.0
    stable_row_ids: bool = False
    file_version: str = "2.1"
    moves: bool = False
    lost_writes: bool = False
    foreign_names: bool = False
    without: str = ""


@dataclass
class Played:
    """What a history came to.

    Attributes
    ----------
    acknowledged, unknown, reads : int
        Writes and reads of single keys.
    calls : int
        Calls of writers that were acknowledged.
    bounds : int
        Flushes and checkpoints.
    jobs : collections.Counter
        Jobs that ended well.
    failures : collections.Counter
        Calls that failed, as they may, by what they were and the error.
    done : collections.Counter
        What was done to the processes, and which writes inside Lance failed.
    """

    acknowledged: int
    unknown: int
    reads: int
    calls: int
    bounds: int
    jobs: Counter[str]
    failures: Counter[str] = field(repr=False)
    done: Counter[str] = field(default_factory=Counter)


class BrokenPromise(AssertionError):
    """What was found: the promise, the seed, and where the histories are."""


def cast_of(seed: int, play: str) -> Cast:
    """Who is there in a play of a seed."""
    dice = Random(seed)
    kind = {
        "regions": dice.choice([1, 2, 4]),
        "stable_row_ids": dice.random() < 0.5,
        "foreign_names": Random(f"names {seed}").random() < 0.3,
        "file_version": dice.choice(FILE_VERSIONS),
        "lost_writes": dice.random() < 0.4,
        "moves": play == "moves",
    }
    if play == "kills" and dice.random() < 0.3:
        roles = ("writer", "lance", "reader", "jobs", "lance_jobs", "collector")
        return Cast(roles, grace=20.0, **kind)
    if play == "foreign":
        roles = ("writer", "writer", "reader", "jobs", "lance_jobs", "collector", "foreign")
        if Random(f"lance-context {seed}").random() < 0.5:
            # It has one region, which it names, and finds no index of tables with stable row ids.
            roles = (*roles, "lance_context")
            kind |= {"regions": 1, "foreign_names": True, "stable_row_ids": False}
        # LanceDB 0.40 does not read what pylance 14 writes in version 2.3.
        kind["file_version"] = dice.choice(FILE_VERSIONS[:3])
        return Cast(roles, grace=20.0, retention=20.0, **kind)
    roles = ("writer", "writer", "reader", "jobs", "collector")
    more = dice.choice([(), ("jobs",), ("writer",), ("lance_jobs",), ("lance_jobs",)])
    clocks = "lance_jobs" not in more and dice.random() < 0.5
    return Cast((*roles, *more), clocks=clocks, **kind)


def run_history(
    seed: int, seconds: float, *, play: str = "kills", cast: Cast | None = None
) -> Played:
    """Play once, with a nemesis that a seed directs.

    Raises
    ------
    BrokenPromise
        Something was seen that must not be. The histories stay where the message says.
    """
    cast = cast_of(seed, play) if cast is None else cast
    nemesis = Nemesis(Random(seed), grace=cast.grace, pause=cast.pause, moves=cast.moves)
    try:
        played = perform(cast, lambda children: nemesis.run(children, seconds), seed=seed)
    except BrokenPromise as broken:
        raise BrokenPromise(
            f"seed {seed}: {broken}\nAgain, if it happens again: "
            f"PYTHONPATH=tests python -m histories.run_history {seed} {seconds:g} {play}"
        ) from None
    return replace(played, done=played.done + nemesis.done)


def perform(cast: Cast, direct: Callable[[list[Child]], None], *, seed: int) -> Played:
    """Play once.

    Parameters
    ----------
    direct : callable
        Is given the children, starts them, and does to them whatever is to be done.

    Raises
    ------
    BrokenPromise
        Something was seen that must not be.
    """
    root = Path(tempfile.mkdtemp(prefix="memwal-histories-"))
    told = _prepare(root, seed, cast)
    broken = []
    try:
        _live(told, cast, FullDisk(root / "disk", root / "full"), direct)
    except EndedByItselfError as error:
        broken.append(str(error))
    _end(told)
    records = read_records(Path(told.folder))
    played = _played(records, Path(told.folder))
    broken += [*records.wrong, *map(str, check(records.history))]
    if broken:
        raise BrokenPromise(
            f"{cast}, {len(broken)} things are wrong:\n"
            + "\n".join(broken[:5])
            + f"\nWhat the processes wrote down is in {root}"
        )
    shutil.rmtree(root)
    return played


def _prepare(root: Path, seed: int, cast: Cast) -> Told:
    folder = root / "processes"
    folder.mkdir()
    disk = root / "disk"
    disk.mkdir()
    uri = str(disk / "table.lance")
    by_lance_context = "lance_context" in cast.roles
    base = lance.write_dataset(
        (STORE_SCHEMA if by_lance_context else SCHEMA).empty_table(),
        uri,
        data_storage_version=cast.file_version,
        enable_stable_row_ids=cast.stable_row_ids,
    )
    base.create_scalar_index("id", "BTREE", name=INDEX)
    table = memwal.enable(
        uri,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", cast.regions),
        maintained_indexes=[INDEX],
    )
    assert len(table.region_ids()) == cast.regions
    if by_lance_context:
        claim_region(table.location.store, REGION, spec_id=0)
    elif cast.foreign_names:
        for assignment in router_in_force(table.base()).assignments() or ():
            # Lance's writer records no values, which of a single region say nothing.
            values = assignment.field_values if cast.regions > 1 else ()
            claim_region(table.location.store, uuid4(), spec_id=1, region_fields=values)
    return Told(
        uri=uri,
        folder=str(folder),
        name="",
        seed=seed,
        first_value=0,
        keys=KEYS,
        grace=cast.grace,
        clocks=cast.clocks,
        rest=cast.rest,
        regions=cast.regions,
        foreign_names=cast.foreign_names,
        retention=cast.retention,
        without=cast.without,
    )


def _live(told: Told, cast: Cast, disk: FullDisk, direct: Callable[[list[Child]], None]) -> None:
    lives = itertools.count(1)
    children = [
        Child(
            role,
            told.named(f"{role}-{number}"),
            lives=lives,
            disk=disk,
            clocks=cast.clocks,
            lost_writes=cast.lost_writes,
        )
        for number, role in enumerate(cast.roles)
    ]
    here = [
        Process(told.named(f"{role}-here", value=(1_000 + number) * 10_000_000))
        for number, role in enumerate(cast.here)
    ]
    threads = [
        threading.Thread(target=_HERE[role], args=(process,))
        for role, process in zip(cast.here, here, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        direct(children)
    finally:
        for one in children:
            one.kill()
        for process in here:
            process.ended.set()
        for thread in threads:
            thread.join()


_HERE: dict[str, Callable[[Process], None]] = {
    "writer": ours,
    "reader": reader,
    "jobs": jobs,
    "collector": collector,
}


def _end(told: Told) -> None:
    """When nobody else is there any more: flush, merge and index everything, and look.

    Nothing may fail now.
    """
    settle(told)
    process = Process(told.named("end"))
    process.learn_keys()
    table, keys = process.table, process.keys
    with process.must_not_fail("the end"):
        writer = table.writer()
        writer.claim()
        process.recorder.claimed(
            process.by_key({region.region_id: region.epoch for region in writer.stats().regions})
        )
        begin = now()
        found = writer.scan().to_table()
        process.record_read(begin, now(), seen_of(found, keys), level=OWN)
        begin = now()
        writer.close()
        process.recorder.bound(Level.FLUSHED, begin, None)
        _look(process)
        begin = now()
        table.checkpoint()
        process.recorder.bound(Level.MERGED, begin, None)
        _look(process)
        for lag in table.status().indexes:
            if lag.generations or lag.rows:
                process.recorder.wrong(f"a checkpoint left rows out of an index: {lag}")
        for bad in bad_files(table):
            process.recorder.wrong(f"a file that is not whole is named: {bad}")
        report = verify(table.location, VerifyOptions(deep=True))
        for finding in report.findings:
            if finding.severity is FindingSeverity.INFORMATION:
                continue
            if finding.code == "merged-row-changed" and may_write_directly(told):
                continue
            process.recorder.wrong(f"verify found: {finding}")


def _look(process: Process) -> None:
    begin = now()
    for found in (process.table.scan().to_table(), native.scan(process.table)):
        process.record_read(begin, now(), seen_of(found, process.keys))
    begin = now()
    found = lance.dataset(process.told.uri).to_table()
    process.record_read(begin, now(), seen_of(found, process.keys), level=BASE)


def _played(records: Records, folder: Path) -> Played:
    history = records.history
    lost = folder / LOST_WRITES
    return Played(
        acknowledged=sum(write.sure for write in history.writes),
        unknown=sum(not write.sure for write in history.writes),
        reads=len(history.reads),
        calls=records.calls,
        bounds=len(history.bounds),
        jobs=records.jobs,
        failures=Counter(f"{what}: {error}" for _, what, error, _ in records.failures),
        done=Counter({"failed writes inside Lance": lost.stat().st_size} if lost.exists() else {}),
    )


def main() -> None:
    """Play one, and tell what it came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("seconds", type=float, nargs="?", default=30.0)
    parser.add_argument("play", choices=PLAYS, nargs="?", default=PLAYS[0])
    arguments = parser.parse_args()
    played = run_history(arguments.seed, arguments.seconds, play=arguments.play)
    print(played)
    for what, count in played.failures.most_common():
        print(f"{count:6} times failed {what}")


if __name__ == "__main__":
    main()
