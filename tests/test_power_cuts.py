"""The power goes while a table is made, enabled, tagged, copied, indexed, cleaned up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lance
import pytest
from support.data import indexed
from support.data.indexed import indexed_table
from support.data.quarantined import rules, waiting
from support.data.sampled import drawn
from support.data.tables import SCHEMA, generations, keys, log, rows, state
from support.faults.power_loss import BEGINNING, END, Crash, Recorder, since, survive, survive_not
from support.oracles import native
from support.systems import BARE, TAKEN, take_away

import memwal
from memwal.base_table.refs import ReadTag, list_refs, place_tag
from memwal.errors import TableSetupError
from memwal.jobs.gc import collect_garbage
from memwal.jobs.options import GcOptions
from memwal.jobs.table import snapshot
from memwal.jobs.verify import verify
from memwal.storage.location import TableLocation

SPEC = memwal.RegionSpec.unsharded()
ROWS = {1: 1, 2: 2}
DONE = "done"
QUICK = {("tags", BARE)}
"""What the default tests try of systems that have less."""
UNSAFE = {"table-torn", "table-file-missing", "table-file-damaged"}
"""What verify finds of a version that Lance did not sync."""


class Stage:
    """A table on a disk that is watched.

    Attributes
    ----------
    path : Path
        Of the table.
    done : callable
        Says that something was acknowledged; a crash knows how often that was so.
    """

    def __init__(self, folder: Path) -> None:
        self._disk = folder / "disk"
        self._disk.mkdir()
        self.path = self._disk / "table"
        self._count = 0
        self.recorder: Recorder[int] = Recorder(self._disk, lambda: self._count)

    def done(self) -> None:
        self._count += 1
        self.recorder.note(DONE)


@dataclass(frozen=True)
class Scene:
    """What happens to a table, and what must be so after a crash.

    Attributes
    ----------
    live : callable
        Is watched.
    check : callable
        Given a folder with the table, and the crash.
    prepare : callable
        What was there before.
    after : str
        The note from which on anything is promised: before that Lance has written, and synced
        nothing.
    """

    live: Callable[[Stage], object]
    check: Callable[[Path, Crash[int]], None]
    prepare: Callable[[Path], object] = lambda path: None
    after: str = BEGINNING

    def record(self, folder: Path) -> Recorder[int]:
        stage = Stage(folder)
        self.prepare(stage.path)
        with stage.recorder.watch():
            self.live(stage)
        return stage.recorder


def use(table: memwal.Table, expected: dict[int, int]) -> None:
    """Everything is there, and everybody can go on."""
    table.upsert(rows({99: 99}))
    native.everything(table)
    table.merge()
    assert state(table) == {**expected, 99: 99}
    assert verify(table.location).clean


def create(path: Path, **options: object) -> memwal.Table:
    return memwal.create(str(path), SCHEMA, primary_key=["id"], region_spec=SPEC, **options)


def create_full(path: Path) -> None:
    create(path).upsert(rows(ROWS))


def is_created(path: Path, crash: Crash[int]) -> None:
    """The table is there, or not, or lacks MemWAL and says so."""
    uri = str(path / "table")
    try:
        table = memwal.open(uri)
    except TableSetupError:
        assert crash.when != END
        try:
            table = memwal.enable(uri, region_spec=SPEC)
        except TableSetupError:
            table = create(path / "table", maintained_indexes=["id_idx"])
    use(table, {})


def enable(stage: Stage) -> None:
    memwal.enable(str(stage.path), primary_key=["id"], region_spec=SPEC)


def write_and_enable(stage: Stage) -> None:
    lance.write_dataset(rows(ROWS), str(stage.path))
    enable(stage)
    stage.done()


def is_enabled(path: Path, crash: Crash[int]) -> None:
    """A Lance table that was safe before is so whatever becomes of MemWAL; after it in any case."""
    uri = str(path / "table")
    try:
        table = memwal.open(uri)
    except TableSetupError:
        assert crash.when != END
        table = memwal.enable(uri, primary_key=["id"], region_spec=SPEC)
    use(table, ROWS)


def create_merged(path: Path) -> None:
    create_full(path)
    memwal.open(str(path)).merge()


def clean_up_behind_a_direct_commit(stage: Stage) -> None:
    def commit() -> None:
        lance.dataset(str(stage.path)).update({"n": "n"}, where="id = 1")

    collect_garbage(
        TableLocation(str(stage.path)),
        GcOptions(
            dry_run=False,
            grace_seconds=0,
            retention_seconds=0,
            version_retention_seconds=0,
            guard=commit,
        ),
    )


def has_a_version(path: Path, crash: Crash[int]) -> None:
    """Lance syncs no commit: the version before it goes only when it is safe."""
    location = TableLocation(str(path / "table"))
    while {finding.code for finding in verify(location).findings} & UNSAFE:
        # The direct commit was not safe, and its version goes by hand.
        min((path / "table" / "_versions").glob("*.manifest")).unlink()
    assert state(memwal.open(location.uri)) == ROWS


def create_with_backlog(path: Path) -> None:
    create_merged(path)
    memwal.open(str(path)).upsert(rows({3: 3}))


def tag_and_collect(stage: Stage) -> None:
    table = memwal.open(str(stage.path))
    base = table.base()
    place_tag(base, ReadTag(3600, base.version, "reader"))
    base.dataset.tags.create("kept", base.version)
    table.merge()
    native.collect_all(table)


def has_what_tags_need(path: Path, crash: Crash[int]) -> None:
    table = memwal.open(str(path / "table"))
    assert state(table) == {**ROWS, 3: 3}
    for ref in list_refs(table.location):
        if ref.version is None:
            # What somebody tagged goes by hand.
            warnings = table.collect_garbage(dry_run=False).warnings
            assert any(ref.name in warning for warning in warnings)
            table.location.store.delete(ref.key)
    native.collect_all(table)
    tags = table.base().dataset.tags.list()
    assert len(tags) == 2 or crash.when != END
    for tag in tags:
        assert state(table.at(tag)) == ROWS
        assert len(generations(table)) == 1
    use(table, {**ROWS, 3: 3})


def create_with_a_log(path: Path) -> None:
    create_full(path)
    writer = memwal.open(str(path)).writer()
    writer.upsert(rows({3: 3}))
    writer.abort()


def copy(stage: Stage) -> None:
    memwal.open(str(stage.path)).copy_to(str(stage.path.with_name("copy")))


def has_no_half_copy(path: Path, crash: Crash[int]) -> None:
    try:
        table = memwal.open(str(path / "copy"))
    except TableSetupError:
        assert crash.when != END
    else:
        use(table, {**ROWS, 3: 3})
    use(memwal.open(str(path / "table")), {**ROWS, 3: 3})


def create_doubtful(path: Path) -> None:
    create(path).upsert(rows({**ROWS, 3: -3}))


def quarantine(stage: Stage) -> None:
    memwal.open(str(stage.path)).merge(quality=rules("quarantine"))


def is_in_quarantine(path: Path, crash: Crash[int]) -> None:
    """A row that the base table lacks waits in quarantine."""
    table = memwal.open(str(path / "table"))
    table.merge(quality=rules("quarantine"))
    assert waiting(table) == {(1, 3, -3)}
    use(table, ROWS)


def take_steps(stage: Stage) -> None:
    table = memwal.open(str(stage.path))
    with table.writer() as writer:
        for version in (1, 2):
            writer.apply(upserts=rows({version: version}), source="orders", version=version)
            stage.done()
    table.merge()
    native.collect_all(table)
    table.upsert(rows({5: 5}))
    table.merge()
    native.collect_all(table)
    assert min(log(table)) > 2, "the steps are told by a book"


def knows_its_steps(path: Path, crash: Crash[int]) -> None:
    """A step that was acknowledged does not come again."""
    table = memwal.open(str(path / "table"))
    with table.writer() as writer:
        writer.claim()
        for version in range(1, crash.known + 1):
            done = writer.apply(upserts=rows({version: 0}), source="orders", version=version)
            assert not done.written
    assert {key: n for key, n in state(table).items() if n == 0} == {}


def hint_at_a_log_of_lance(stage: Stage) -> None:
    table = memwal.open(str(stage.path))
    shard = native.writer(table)
    for n in range(6):
        native.put(shard, table, rows({10 + n: n}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "_HINT_LAG", 1)
        assert table.build_snapshot().metrics["hints"] == 1
    stage.done()


def can_be_claimed(path: Path, crash: Crash[int]) -> None:
    """The hint is not ahead of the log, of which Lance syncs nothing."""
    table = memwal.open(str(path / "table"))
    with table.writer() as writer:
        writer.upsert(rows({99: 99}))
        assert state(writer).items() >= {**ROWS, 99: 99}.items()


def create_indexed(kind: str, path: Path) -> None:
    path.mkdir()
    table = indexed_table(path, kind)
    table.upsert(indexed.rows(1_000, 4))


def flush_and_index(stage: Stage) -> None:
    table = memwal.open(str(stage.path / "indexed"))
    with table.writer() as writer:
        writer.upsert(indexed.rows(2_000, 4))
        writer.delete(keys(1_000))
        stage.done()
        writer.flush()
    table.merge()
    table.build_indexes()
    native.collect_all(table)


def finds_by_index(kind: str, path: Path, crash: Crash[int]) -> None:
    """What was acknowledged is found through the index, which then catches up."""
    table = memwal.open(str(path / "table" / "indexed"))
    with table.writer() as writer:
        writer.claim()
    native.everything(table)
    query = indexed.rows(2_000, 4).column("vector")[2].as_py()
    for _ in range(2 if crash.known else 0):
        if kind == "INVERTED":
            found = table.search_text("word17", column="text", k=1_000).to_table()
            assert 2_001 in found.column("id").to_pylist()
        else:
            found = table.search(query, column="vector", k=1).to_table()
            assert found.column("id").to_pylist() == [2_002]
        assert table.lookup(keys(1_000)).count_rows() == 0
        table.checkpoint()
    if crash.known and kind == "IVF_PQ":
        # Lance looks for what is merged in the index alone.
        assert 2_002 in native.nearest(table, "vector", query)
    assert verify(table.location).clean


SCENES = {
    "create": Scene(
        lambda stage: create(stage.path, maintained_indexes=["id_idx"]),
        is_created,
    ),
    "enable": Scene(enable, is_enabled, lambda path: lance.write_dataset(rows(ROWS), str(path))),
    "new rows": Scene(write_and_enable, is_enabled, after=DONE),
    "direct commit": Scene(clean_up_behind_a_direct_commit, has_a_version, create_merged),
    "tags": Scene(tag_and_collect, has_what_tags_need, create_with_backlog),
    "copy": Scene(copy, has_no_half_copy, create_with_a_log),
    "quarantine": Scene(quarantine, is_in_quarantine, create_doubtful),
    "steps": Scene(take_steps, knows_its_steps, create),
    "hint": Scene(hint_at_a_log_of_lance, can_be_claimed, create_full, after=DONE),
    **{
        kind: Scene(flush_and_index, partial(finds_by_index, kind), partial(create_indexed, kind))
        for kind in ("IVF_PQ", "INVERTED")
    },
}


@pytest.mark.few(5)
@pytest.mark.parametrize("scene", SCENES)
def test_nothing_is_lost(tmp_path: Path, most_disks: int | None, scene: str) -> None:
    check_scene(tmp_path, most_disks, scene)


@pytest.mark.parametrize(
    ("scene", "lacks"),
    [
        pytest.param(scene, lacks, marks=() if (scene, lacks) in QUICK else pytest.mark.slow)
        for scene in SCENES
        for lacks in (BARE, *(TAKEN if scene == "tags" else ()))
    ],
)
def test_nothing_is_lost_where_the_system_has_less(
    tmp_path: Path,
    most_disks: int | None,
    scene: str,
    lacks: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_away(monkeypatch, lacks)
    check_scene(tmp_path, most_disks, scene)


def check_scene(tmp_path: Path, most_disks: int | None, scene: str) -> None:
    recorder = SCENES[scene].record(tmp_path)
    found = since(recorder.crashes(), SCENES[scene].after)
    survive(found, tmp_path, SCENES[scene].check, most=most_disks)


@pytest.mark.parametrize(
    ("scene", "missing", "after"),
    drawn(
        8,
        [
            ("create", "^syncfs", BEGINNING),
            ("create", "_versions/", BEGINNING),
            ("create", "_versions$", END),
            ("create", "table$", END),
            ("enable", "_versions/", BEGINNING),
            ("new rows", "^syncfs", DONE),
            ("direct commit", "^syncfs", BEGINNING),
            ("tags", "^syncfs", BEGINNING),
            ("copy", "copy/_mem_wal/.*(data|wal)/", BEGINNING),
            ("copy", "copy/_versions", BEGINNING),
            ("quarantine", "^syncfs", BEGINNING),
            ("steps", "/applied/", BEGINNING),
            ("steps", "/applied$", BEGINNING),
            ("hint", "^syncfs", DONE),
            ("IVF_PQ", "_gen_2/_indices/", BEGINNING),
            ("INVERTED", "_gen_2/_indices/", BEGINNING),
        ],
        seed="a sync",
    ),
)
def test_a_missing_sync_is_noticed(tmp_path: Path, scene: str, missing: str, after: str) -> None:
    recorder = SCENES[scene].record(tmp_path)
    survive_not(recorder, missing, tmp_path, SCENES[scene].check, after=after)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scene", "missing", "after"),
    [
        ("new rows", "/data/", DONE),
        ("new rows", "/data$", DONE),
        ("direct commit", "table/data/", BEGINNING),
        ("direct commit", "table/_versions/", BEGINNING),
        ("tags", "table/data/", BEGINNING),
        ("quarantine", "/data/", BEGINNING),
        ("hint", "/wal/", DONE),
        ("hint", "/wal$", DONE),
    ],
)
def test_a_missing_sync_is_noticed_where_the_system_has_less(
    tmp_path: Path, scene: str, missing: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch, BARE)
    recorder = SCENES[scene].record(tmp_path)
    survive_not(recorder, missing, tmp_path, SCENES[scene].check, after=after)
