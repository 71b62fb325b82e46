"""A table that LanceDB and memwal share: each goes on where the other stopped."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import lancedb
import pyarrow as pa
import pytest
from lancedb import LsmWriteSpec
from lancedb.index import BTree
from lancedb.table import Table as LanceTable
from support.data.merging import DIVIDED, Merge
from support.data.tables import base_state, keys, region_folders, rows, state
from support.oracles.native import collect_all, everything, ordered

import memwal
from memwal.errors import InvalidInputError, TableSetupError
from memwal.region.manifest_store import discover_regions
from memwal.region.router import Router

NAME = "shared"
KINDS = {
    "bucket": lambda: LsmWriteSpec.bucket("id", 4),
    "identity": lambda: LsmWriteSpec.identity("id"),
    "unsharded": LsmWriteSpec.unsharded,
}
FIRST = dict.fromkeys(range(4), 0)
ALWAYS_FRESH = timedelta(0)


class Shared:
    """A table that LanceDB made, and what must be in it."""

    def __init__(self, folder: Path, spec: LsmWriteSpec, data: pa.Table | None = None) -> None:
        self._folder = str(folder)
        # LanceDB's handles look for new versions only if they are told to.
        database = lancedb.connect(self._folder, read_consistency_interval=ALWAYS_FRESH)
        self.lance = database.create_table(NAME, rows(FIRST) if data is None else data)
        self.lance.set_unenforced_primary_key("id")
        self.lance.create_index("n", config=BTree())
        self.lance.set_lsm_write_spec(spec)
        self.ours = memwal.open(str(folder / f"{NAME}.lance"))
        self.wanted: dict[int, int | None] = dict(FIRST)

    def fresh(self) -> LanceTable:
        """The table as a LanceDB that starts now opens it."""
        return lancedb.connect(self._folder).open_table(NAME)

    def put(self, values: dict[int, int | None]) -> None:
        """Upsert with LanceDB, which has a writer for one region at a time."""
        _, spec = self.ours.region_spec()
        for _, part in Router(spec, self.ours.schema).route(rows(values)):
            upsert(self.lance, pa.Table.from_batches([part]))
            self.lance.close_lsm_writers()
        self.wanted |= values

    def put_ours(self, values: dict[int, int | None], *gone: int) -> None:
        """Upsert and delete with our writer."""
        with self.ours.writer() as writer:
            writer.upsert(rows(values))
            writer.delete(keys(*gone))
        self.wanted |= values
        for key in gone:
            self.wanted.pop(key, None)

    def check(self) -> None:
        """Every reader must show what is wanted."""
        everything(self.ours)
        assert state(self.ours) == self.wanted
        assert state(found(self.fresh())) == self.wanted
        assert state(found(self.lance)) == self.wanted

    def regions(self) -> set[UUID]:
        return set(discover_regions(self.ours.location.store))


def upsert(table: LanceTable, data: pa.Table) -> None:
    builder = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    builder.execute(data)


def found(table: LanceTable) -> pa.Table:
    return table.search().limit(10_000).to_arrow()


@pytest.fixture(params=KINDS)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    return Shared(tmp_path, KINDS[request.param]())


JOBS: dict[str, Callable[[Shared], object]] = {
    "merge": lambda s: s.ours.merge(),
    "divided merge": lambda s: s.ours.merge(**DIVIDED),
    "index": lambda s: s.ours.build_indexes(),
    "snapshot": lambda s: s.ours.build_snapshot(),
    "collect": lambda s: collect_all(s.ours),
    "compaction of files by LanceDB": lambda s: s.lance.optimize(),
    "checkpoint": lambda s: s.ours.checkpoint(),
}


@pytest.mark.few(1)
def test_our_jobs_on_what_lancedb_writes(shared: Shared) -> None:
    """LanceDB reads the same rows before and after each, and goes on writing after each."""
    shared.put({1: 1, 2: 1, 4: 1})
    shared.check()
    for number, job in enumerate(JOBS.values(), start=2):
        job(shared)
        shared.check()
        shared.put({2: number, 5: number})
        shared.check()
    assert shared.regions() <= set(shared.ours.region_ids())
    shared.ours.checkpoint()
    collect_all(shared.ours)
    assert base_state(shared.ours) == shared.wanted
    assert not any(region_folders(shared.ours, region_id) for region_id in shared.regions())
    shared.check()
    assert all(region.retained_generations == 0 for region in shared.ours.status().regions)


@pytest.mark.few(1)
def test_both_write_into_the_same_regions(shared: Shared, merge: Merge) -> None:
    values: dict[int, int | None] = dict.fromkeys(range(6), 1)
    shared.put(values)
    regions = shared.regions()
    shared.put_ours(dict.fromkeys(values, 2), 0, 3)
    assert shared.regions() == regions
    shared.check()
    shared.put({3: 3, 4: 3})
    shared.check()
    merge(shared.ours)
    shared.put_ours({2: 4, 4: 4}, 5)
    shared.check()
    shared.put({5: 5, 2: 5})
    assert shared.regions() == regions
    shared.check()
    shared.ours.checkpoint()
    collect_all(shared.ours)
    assert base_state(shared.ours) == shared.wanted
    shared.check()


@pytest.mark.few(1)
def test_regions_that_ours_made(shared: Shared) -> None:
    """LanceDB finds them, and reads and writes there."""
    shared.put_ours(dict.fromkeys(range(6), 1), 1)
    regions = shared.regions()
    shared.check()
    shared.put(dict.fromkeys(range(6), 2))
    assert shared.regions() == regions
    shared.check()


def test_a_writer_of_lancedb_stays_open(tmp_path: Path, merge: Merge) -> None:
    """It goes on after our jobs, and is fenced by our writer, which takes its rows along."""
    shared = Shared(tmp_path, LsmWriteSpec.unsharded())
    upsert(shared.lance, rows({1: 1, 2: 1}))
    merge(shared.ours)
    collect_all(shared.ours)
    upsert(shared.lance, rows({2: 2, 3: 2}))
    shared.wanted |= {1: 1, 2: 2, 3: 2}
    # What it holds in memory only it can see.
    assert state(found(shared.lance)) == shared.wanted
    shared.put_ours({3: 3})
    assert state(found(shared.fresh())) == state(shared.ours) == shared.wanted
    for call in (lambda: upsert(shared.lance, rows({4: 4})), shared.lance.close_lsm_writers):
        with pytest.raises(RuntimeError, match="fenced"):
            call()
    shared.put({2: 5})
    shared.check()


def test_rows_divided_by_a_column_outside_the_key(tmp_path: Path) -> None:
    """LanceDB allows it. Such a table can be looked after; writing there ours refuses."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("n", pa.int64()), ("part", pa.string())]
    )

    def parted(values: dict[int, int], part: str) -> pa.Table:
        data = {"id": list(values), "n": list(values.values()), "part": [part] * len(values)}
        return pa.table(data, schema=schema)

    shared = Shared(tmp_path, LsmWriteSpec.identity("part"), parted({1: 1}, "a"))
    for part, values in (("a", {1: 2, 2: 2}), ("b", {3: 3})):
        upsert(shared.lance, parted(values, part))
        shared.lance.close_lsm_writers()
    before = everything(shared.ours)
    assert {row["id"]: row["n"] for row in before} == {1: 2, 2: 2, 3: 3}
    with pytest.raises(InvalidInputError, match="part"):
        shared.ours.writer()
    shared.ours.checkpoint()
    collect_all(shared.ours)
    assert everything(shared.ours) == before
    assert ordered(found(shared.fresh())) == before


def test_a_composite_key(tmp_path: Path) -> None:
    """LanceDB cannot set one, but writes and reads a table that has one."""
    schema = pa.schema(
        [
            pa.field("part", pa.string(), nullable=False),
            pa.field("id", pa.int64(), nullable=False),
            pa.field("n", pa.int64()),
        ]
    )
    ours = memwal.create(
        tmp_path / f"{NAME}.lance", schema, primary_key=["part", "id"], region_spec="identity:part"
    )

    def parted(part: str, values: dict[int, int]) -> pa.Table:
        data = {"part": [part] * len(values), "id": list(values), "n": list(values.values())}
        return pa.table(data, schema=schema)

    lance_table = lancedb.connect(str(tmp_path)).open_table(NAME)
    for part in "ab":
        builder = lance_table.merge_insert(["part", "id"])
        builder.when_matched_update_all().when_not_matched_insert_all().execute(
            parted(part, {1: 1, 2: 1})
        )
        lance_table.close_lsm_writers()
    with ours.writer() as writer:
        writer.upsert(parted("a", {2: 2, 3: 2}))
        writer.delete(parted("b", {1: 0}).select(["part", "id"]))
    wanted = [("a", 1, 1), ("a", 2, 2), ("a", 3, 2), ("b", 2, 1)]
    for job in (ours.merge, ours.build_snapshot, lambda: collect_all(ours)):
        assert [(row["part"], row["id"], row["n"]) for row in everything(ours)] == wanted
        fresh = lancedb.connect(str(tmp_path)).open_table(NAME)
        assert ordered(found(fresh), ("part", "id")) == everything(ours)
        job()
    assert [(row["part"], row["id"], row["n"]) for row in everything(ours)] == wanted


@pytest.mark.parametrize("job", ["flush_lsm", "compact_lsm", "checkpoint_lsm", "get_lsm_stats"])
def test_the_embedded_library_leaves_maintenance_to_others(tmp_path: Path, job: str) -> None:
    """What ``docs/comparison.md`` says of it: where this fails, correct that page."""
    shared = Shared(tmp_path, LsmWriteSpec.unsharded())

    with pytest.raises(NotImplementedError, match="not supported on this table type"):
        getattr(shared.lance, job)()


def test_lancedb_takes_mem_wal_away(tmp_path: Path) -> None:
    """What ``docs/guides/adopt-a-table.md`` relies on to go back."""
    shared = Shared(tmp_path, LsmWriteSpec.unsharded())
    shared.put({1: 1})
    shared.ours.checkpoint()

    shared.fresh().unset_lsm_write_spec()

    assert shared.fresh().get_lsm_write_spec() is None
    with pytest.raises(TableSetupError):
        memwal.open(shared.ours.uri).writer()
    assert state(shared.fresh().to_arrow()) == shared.wanted
