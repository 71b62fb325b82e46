"""A table is made, enabled, tagged, copied, indexed, cleaned up, until the power goes."""

from functools import partial
from pathlib import Path

import lance
import pytest
from power_cuts.scenes import DONE, Known, Scene, Stage
from support.data import indexed
from support.data.indexed import indexed_table
from support.data.quarantined import rules, waiting
from support.data.tables import SCHEMA, collect_now, generations, keys, log, rows, state
from support.faults.power_loss import END, Crash, since
from support.oracles import native

import memwal
from memwal.base_table.refs import ReadTag, list_refs, place_tag
from memwal.errors import TableSetupError
from memwal.jobs.table import snapshot
from memwal.jobs.verify import verify
from memwal.storage.location import TableLocation

SPEC = memwal.RegionSpec.unsharded()
ROWS = {1: 1, 2: 2}
UNSAFE = {"table-torn", "table-file-missing", "table-file-damaged"}
"""What verify finds of a version that Lance did not sync."""


def use(table: memwal.Table, expected: dict[int, int]) -> None:
    """Everything is there, and everybody can go on."""
    table.upsert(rows({99: 99}))
    native.everything(table)
    table.merge()
    assert state(table) == {**expected, 99: 99}
    assert verify(table.location).clean


def create(path: Path, **options: object) -> memwal.Table:
    return memwal.create(str(path), SCHEMA, primary_key=["id"], region_spec=SPEC, **options)


def create_full(stage: Stage) -> None:
    create(stage.path).upsert(rows(ROWS))


def is_created(path: Path, crash: Crash[Known]) -> None:
    """The table is there, or not, or lacks MemWAL and says so."""
    uri = str(path / "table")
    try:
        table = memwal.open(uri)
        table.base().require_mem_wal()
    except TableSetupError:
        assert crash.when != END
        try:
            table = memwal.enable(uri, region_spec=SPEC)
        except TableSetupError:
            table = create(path / "table", maintained_indexes=["id_idx"])
    use(table, {})


def enable(stage: Stage) -> None:
    memwal.enable(str(stage.path), primary_key=["id"], region_spec=SPEC)


def write_directly(stage: Stage) -> None:
    lance.write_dataset(rows(ROWS), str(stage.path))


def write_and_enable(stage: Stage) -> None:
    write_directly(stage)
    enable(stage)
    stage.done()


def is_enabled(path: Path, crash: Crash[Known]) -> None:
    """A Lance table that was safe before is so whatever becomes of MemWAL; after it in any case."""
    uri = str(path / "table")
    try:
        table = memwal.open(uri)
        table.base().require_mem_wal()
    except TableSetupError:
        assert crash.when != END
        table = memwal.enable(uri, primary_key=["id"], region_spec=SPEC)
    use(table, ROWS)


def create_merged(stage: Stage) -> None:
    create_full(stage)
    memwal.open(str(stage.path)).merge()


def clean_up_behind_a_direct_commit(stage: Stage) -> None:
    def commit() -> None:
        lance.dataset(str(stage.path)).update({"n": "n"}, where="id = 1")

    table = memwal.Table(TableLocation(str(stage.path)))
    collect_now(table, version_retention_seconds=0, guard=commit)


def has_a_version(path: Path, crash: Crash[Known]) -> None:
    """Lance syncs no commit: the version before it goes only when it is safe."""
    assert state(open_safe_version(path)) == ROWS


def open_safe_version(path: Path) -> memwal.Table:
    """Open the table of a crash whose newest version may be a direct commit that was not safe."""
    location = TableLocation(str(path / "table"))
    while {finding.code for finding in verify(location).findings} & UNSAFE:
        # It goes by hand.
        min((path / "table" / "_versions").glob("*.manifest")).unlink()
    return memwal.open(location.uri)


def create_with_backlog(stage: Stage) -> None:
    create_merged(stage)
    memwal.open(str(stage.path)).upsert(rows({3: 3}))


def tag_and_collect(stage: Stage) -> None:
    table = memwal.open(str(stage.path))
    base = table.base()
    place_tag(base, ReadTag(3600, base.version, "reader"))
    base.dataset.tags.create("kept", base.version)
    table.merge()
    native.collect_all(table)


def has_what_tags_need(path: Path, crash: Crash[Known]) -> None:
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


def create_with_a_log(stage: Stage) -> None:
    create_full(stage)
    writer = memwal.open(str(stage.path)).writer()
    writer.upsert(rows({3: 3}))
    writer.abort()


def copy(stage: Stage) -> None:
    memwal.open(str(stage.path)).copy_to(str(stage.path.with_name("copy")))


def has_no_half_copy(path: Path, crash: Crash[Known]) -> None:
    try:
        table = memwal.open(str(path / "copy"))
    except TableSetupError:
        assert crash.when != END
    else:
        use(table, {**ROWS, 3: 3})
    use(memwal.open(str(path / "table")), {**ROWS, 3: 3})


def create_doubtful(stage: Stage) -> None:
    create(stage.path).upsert(rows({**ROWS, 3: -3}))


def quarantine(stage: Stage) -> None:
    memwal.open(str(stage.path)).merge(quality=rules("quarantine"))


def is_in_quarantine(path: Path, crash: Crash[Known]) -> None:
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


def knows_its_steps(path: Path, crash: Crash[Known]) -> None:
    """A step that was acknowledged does not come again."""
    table = memwal.open(str(path / "table"))
    with table.writer() as writer:
        writer.claim()
        for version in range(1, crash.known.count + 1):
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


def can_be_claimed(path: Path, crash: Crash[Known]) -> None:
    """The hint is not ahead of the log, of which Lance syncs nothing."""
    table = memwal.open(str(path / "table"))
    with table.writer() as writer:
        writer.upsert(rows({99: 99}))
        assert state(writer).items() >= {**ROWS, 99: 99}.items()


def create_indexed(kind: str, stage: Stage) -> None:
    stage.path.mkdir()
    table = indexed_table(stage.path, kind)
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


def finds_by_index(kind: str, path: Path, crash: Crash[Known]) -> None:
    """What was acknowledged is found through the index, which then catches up."""
    table = memwal.open(str(path / "table" / "indexed"))
    with table.writer() as writer:
        writer.claim()
    native.everything(table)
    query = indexed.rows(2_000, 4).column("vector")[2].as_py()
    for _ in range(2 if crash.known.count else 0):
        if kind == "INVERTED":
            found = table.search_text("word17", column="text", k=1_000).to_table()
            assert 2_001 in found.column("id").to_pylist()
        else:
            found = table.search(query, column="vector", k=1).to_table()
            assert found.column("id").to_pylist() == [2_002]
        assert table.lookup(keys(1_000)).count_rows() == 0
        table.checkpoint()
    if crash.known.count and kind == "IVF_PQ":
        # Lance looks for what is merged in the index alone.
        assert 2_002 in native.nearest(table, "vector", query)
    assert verify(table.location).clean


done = partial(since, what=DONE)

SCENES = {
    "create": Scene(
        lambda stage: create(stage.path, maintained_indexes=["id_idx"]),
        is_created,
    ),
    "enable": Scene(enable, is_enabled, write_directly),
    "new rows": Scene(write_and_enable, is_enabled, promised=done),
    "direct commit": Scene(clean_up_behind_a_direct_commit, has_a_version, create_merged),
    "tags": Scene(tag_and_collect, has_what_tags_need, create_with_backlog),
    "copy": Scene(copy, has_no_half_copy, create_with_a_log),
    "quarantine": Scene(quarantine, is_in_quarantine, create_doubtful),
    "steps": Scene(take_steps, knows_its_steps, lambda stage: create(stage.path)),
    "hint": Scene(hint_at_a_log_of_lance, can_be_claimed, create_full, promised=done),
    **{
        kind: Scene(flush_and_index, partial(finds_by_index, kind), partial(create_indexed, kind))
        for kind in ("IVF_PQ", "INVERTED")
    },
}
