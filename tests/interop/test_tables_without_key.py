"""Tables without a primary key: what Lance's own writer makes and reads, and what ours does."""

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import lance
import lancedb
import pyarrow as pa
import pytest
from lance.mem_wal import ShardWriter
from support.data.tables import collect_now

import memwal
from memwal.errors import InvalidInputError, TableSetupError
from memwal.format.paths import wal_key
from memwal.format.wal_encoder import EntryEncoder
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.log import find_tip
from memwal.quality.quarantine import Quarantine, origins_of
from memwal.quality.rules import QualityRules
from memwal.quarantine_review import release, waiting_rows
from memwal.queries import Queries
from memwal.region.spec import RegionSpec

_SIZE = 4
_UNSHARDED = UUID("aa48498d-ac91-59e2-8452-69f46010ace2")
SCHEMA = pa.schema(
    [("at", pa.int64()), ("text", pa.string()), ("v", pa.list_(pa.float32(), _SIZE))]
)


def rows(*at: int | None) -> pa.Table:
    """Rows of some moments; two with the same moment are the same row."""
    values = [{"at": n, "text": f"row word{n or 0}", "v": [float(n or 0)] * _SIZE} for n in at]
    return pa.Table.from_pylist(values, SCHEMA)


def moments(queries: Queries) -> list[int | None]:
    """Return the moments of all rows in the order of a scan."""
    found: list[int | None] = queries.scan(columns=["at"]).to_table().column("at").to_pylist()
    return found


def native(uri: str, region: UUID = _UNSHARDED) -> ShardWriter:
    """Open Lance's own writer of a region."""
    return lance.dataset(uri).mem_wal_writer(str(region))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of Lance with MemWAL, three indexes and two rows, which its own writer writes."""
    path = str(tmp_path / "t.lance")
    stored = lance.write_dataset(rows(1, 2), path)
    stored.create_scalar_index("at", "BTREE")
    stored.create_scalar_index("text", "INVERTED")
    stored.initialize_mem_wal(unsharded=True)
    return path


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    """A table of ours, empty."""
    return memwal.create(
        tmp_path / "t.lance", SCHEMA, primary_key=None, maintained_indexes=["at_idx"]
    )


class TestWrittenByLance:
    def test_flushed_rows_and_the_log_are_read_and_none_is_replaced(self, uri: str) -> None:
        with native(uri) as writer:
            writer.put(rows(1, 1, 3))
            writer.put(rows(1, None))
        logged = native(uri)
        logged.put(rows(7, 1))

        table = memwal.open(uri)
        assert table.primary_key == ()
        assert moments(table) == [1, 1, 3, 1, None, 1, 2]
        assert moments(table.fresh()) == [1, 1, 3, 1, None, 7, 1, 1, 2]
        assert moments(table.at_most(timedelta(minutes=1))) == moments(table)
        assert (table.count_rows(), table.count_rows(filter="at = 1")) == (7, 4)
        assert (table.fresh().count_rows(), table.fresh().count_rows(filter="at = 1")) == (9, 5)
        assert table.head(3).num_rows == 3
        generations = table.scan(filter="at = 1", with_generation=True).to_table()
        assert generations.column("_gen").to_pylist() == [1, 1, 1, 0]
        assert table.scan(limit=3, offset=1).to_table().num_rows == 3
        assert table.scan(columns=[], filter="true").count_rows() == 7
        with pytest.raises(InvalidInputError):
            table.lookup([1]).to_table()
        del logged

    def test_searches_find_each_row(self, uri: str) -> None:
        with native(uri) as writer:
            writer.put(rows(1, 1, 3))
        table = memwal.open(uri)
        for _ in range(2):
            found = table.search([1.0] * _SIZE, k=3).to_table()
            assert found.column("at").to_pylist() == [1, 1, 1]
            assert table.search([1.0] * _SIZE, k=5, filter="at < 3").to_table().num_rows == 4
            assert table.search_text("word1", k=None).to_table().num_rows == 3
            hybrid = table.search_hybrid([1.0] * _SIZE, "word1", k=4).to_table()
            assert Counter(hybrid.column("at").to_pylist())[1] == 3
            table.merge()

    def test_ours_takes_over_and_lance_takes_over_again(self, uri: str) -> None:
        logged = native(uri)
        logged.put(rows(3, 3))
        with memwal.open(uri).writer() as writer:
            writer.append(rows(3, 4))
        with native(uri) as again:
            again.put(rows(4))
        assert moments(memwal.open(uri)) == [3, 3, 3, 4, 4, 1, 2]
        assert memwal.open(uri).verify(deep=True).findings == ()
        del logged

    def test_a_region_that_lance_names_itself(self, tmp_path: Path) -> None:
        path, region = str(tmp_path / "t.lance"), uuid4()
        lance.write_dataset(rows(1), path).initialize_mem_wal()
        with native(path, region) as writer:
            writer.put(rows(1, 2))
        table = memwal.open(path)
        with table.writer(region=region) as ours:
            ours.append(rows(2))
        assert moments(table) == [1, 2, 2, 1]
        assert table.merge().metrics["rows_upserted"] == 3
        assert moments(table) == [1, 1, 2, 2]

    def test_merge_collect_and_lance_reads(self, uri: str) -> None:
        for moment in range(3, 6):
            with native(uri) as writer:
                writer.put(rows(moment, moment))
        table = memwal.open(uri)
        table.checkpoint()
        assert table.verify(deep=True).findings == ()
        collect_now(table)
        assert lance.dataset(uri).to_table().column("at").to_pylist() == [1, 2, 3, 3, 4, 4, 5, 5]
        assert lance.dataset(uri).count_rows(filter="at = 4") == 2
        with native(uri) as writer:
            writer.put(rows(9))
        table.merge()
        assert moments(table)[-2:] == [5, 9]


class TestWrittenByOurs:
    def test_generations_are_as_those_of_lance(self, uri: str) -> None:
        """Native ones have a bloom filter of one hash, and no index of keys."""
        with native(uri) as writer:
            writer.put(rows(3, 3))
        with memwal.open(uri).writer() as ours:
            ours.append(rows(3, 3))
        folders = [Path(uri, "_mem_wal", str(_UNSHARDED)).glob(f"*_gen_{n}") for n in (1, 2)]
        (native_one,), (own,) = map(list, folders)
        assert {path.name for path in own.iterdir()} == {path.name for path in native_one.iterdir()}
        blooms = {(folder / "bloom_filter.bin").read_bytes() for folder in (native_one, own)}
        assert len(blooms) == 1
        stored = [lance.dataset(folder) for folder in (native_one, own)]
        assert stored[0].lance_schema == stored[1].lance_schema
        assert stored[0].to_table() == stored[1].to_table()

    def test_reads_of_the_writer_see_every_row(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            assert writer.append(rows(1, 1)).done()
            writer.append(rows(2).to_pylist())
            writer.flush()
            writer.append({"at": 1, "text": "row word1", "v": [1.0] * _SIZE})
            assert moments(writer) == [1, 1, 2, 1]
            assert writer.count_rows(filter="at = 1") == 3
            assert writer.search([1.0] * _SIZE, k=3).to_table().column("at").to_pylist() == [1] * 3
        table.append(rows(1))
        assert moments(table) == [1, 1, 2, 1, 1]

    def test_what_a_key_needs_is_refused(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.append(rows(1))
            with pytest.raises(InvalidInputError, match="append"):
                writer.upsert(rows(1))
            with pytest.raises(InvalidInputError, match="append"):
                writer.upsert({"at": 1}, partial=True)
            with pytest.raises(InvalidInputError, match="append"):
                writer.delete(rows(1))
            with pytest.raises(InvalidInputError, match="append"):
                writer.delete(where="at = 1")
            with pytest.raises(InvalidInputError, match="append"):
                writer.apply(upserts=rows(1), source="s", version=1)
        assert moments(table) == [1]

    def test_a_table_with_a_key_says_upsert(self, tmp_path: Path) -> None:
        table = memwal.create(tmp_path / "k.lance", SCHEMA, primary_key="at")
        with pytest.raises(InvalidInputError, match="upsert"):
            table.append(rows(1))

    def test_steps_are_appended_once(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            for _ in range(2):
                writer.apply(appends=rows(5, 5), source="s", version=1)
        with table.writer() as writer:
            writer.apply(appends=rows(5, 5), source="s", version=1)
        assert moments(table) == [5, 5]

    def test_asynchronous(self, table: memwal.Table) -> None:
        async def write() -> None:
            async with memwal.aio.open_writer(table) as writer:
                await writer.append(rows(1, 1))
                await asyncio.gather(*(writer.append(rows(2)) for _ in range(3)))

        asyncio.run(write())
        assert sorted(moments(table)) == [1, 1, 2, 2, 2]

    def test_rows_are_divided_by_any_column(self, tmp_path: Path) -> None:
        spec = RegionSpec.bucket("at", 4)
        table = memwal.create(tmp_path / "t.lance", SCHEMA, primary_key=None, region_spec=spec)
        given = [*range(20), *range(10)]
        with table.writer() as writer:
            writer.append(rows(*given, None))
        assert len(table.region_ids()) == 4
        assert Counter(moments(table)) == Counter([*given, None])
        plan = table.explain(filter="at = 3")
        assert len(plan.generations) == 1
        assert table.count_rows(filter="at = 3") == 2
        assert table.verify(deep=True).findings == ()
        table.merge()
        assert Counter(moments(table)) == Counter([*given, None])

    def test_enable_says_how(self, tmp_path: Path) -> None:
        path = tmp_path / "plain.lance"
        lance.write_dataset(rows(1, 1, None), path)
        with pytest.raises(TableSetupError, match="no-primary-key"):
            memwal.enable(path)
        table = memwal.enable(path, primary_key=())
        table.append(rows(1))
        assert moments(table) == [1, 1, 1, None]
        with pytest.raises(InvalidInputError):
            memwal.enable(_keyed(tmp_path / "keyed.lance"), primary_key=())


def _keyed(path: Path) -> Path:
    declared = {b"lance-schema:unenforced-primary-key": b"true"}
    schema = SCHEMA.set(0, pa.field("at", pa.int64(), False, metadata=declared))
    lance.write_dataset(rows(1).cast(schema), path)
    return path


class TestLanceDB:
    """Its queries refuse such a table; its writes beside the log count like Lance's own."""

    def test_appends_deletes_and_optimizes_beside_the_log(self, table: memwal.Table) -> None:
        path = Path(table.uri)
        opened = lancedb.connect(path.parent).open_table(path.stem)
        table.append(rows(1, 1))
        opened.add(rows(1, 2))
        table.merge()
        opened.optimize()
        table.append(rows(2))
        assert Counter(moments(table)) == Counter([1, 1, 1, 2, 2])
        opened.checkout_latest()
        assert opened.count_rows() == 4
        opened.delete("at = 1")
        table.merge()
        assert moments(table) == [2, 2]
        assert table.verify(deep=True).findings == ()
        # Once this fails, docs/writer.md can say so.
        with pytest.raises(ValueError, match="primary key"):
            opened.search().to_arrow()


class TestFencedWriters:
    """An entry of a fenced writer that lands behind the fence is in the log for each replay."""

    @pytest.mark.parametrize("generation", [1, 2, 7])
    def test_its_rows_count_once(self, uri: str, generation: int) -> None:
        table = memwal.open(uri)
        with table.writer() as first:
            first.append(rows(10))
        writer = table.writer()
        writer.append(rows(11))
        self._put_late(table, generation)
        writer.append(rows(13))
        expected = Counter([1, 2, 10, 11, 12, 13])
        assert Counter(moments(writer)) == expected
        assert Counter(moments(table.fresh())) == expected
        writer.abort()
        with table.writer() as replaying:
            replaying.append(rows(14))
            expected[14] += 1
            assert Counter(moments(replaying)) == expected
            assert Counter(moments(table.fresh())) == expected
        table.merge()
        assert Counter(moments(table)) == expected

    @staticmethod
    def _put_late(table: memwal.Table, generation: int) -> None:
        store, base = table.location.store, table.base()
        region = _UNSHARDED
        tip = find_tip(store, region, start=1)
        encoder = EntryEncoder(RowSchema.of(base).schema, writer_epoch=1, writer_id="fenced")
        stored = RowSchema.of(base).convert_appends(rows(12))
        data = encoder.encode(stored, generation=generation).data
        store.put(wal_key(region, tip), data)


class TestMerge:
    def test_a_divided_merge_adds_each_row_once_in_order(self, table: memwal.Table) -> None:
        given: list[int] = []
        with table.writer() as writer:
            for start in range(0, 4000, 1000):
                given += [n // 3 for n in range(start, start + 1000)]
                writer.append(rows(*given[-1000:]))
                writer.flush()
        result = table.merge(max_tasks=3, commit_bytes=1 << 16)
        assert result.metrics["rows_upserted"] == 4000
        assert result.commits == 1
        assert moments(table) == given
        assert table.merge().commits == 0

    def test_stable_row_ids(self, tmp_path: Path) -> None:
        path = str(tmp_path / "t.lance")
        lance.write_dataset(rows(1), path, enable_stable_row_ids=True)
        table = memwal.enable(path, primary_key=())
        for _ in range(2):
            table.append(rows(1, 2))
            table.merge()
        ids = lance.dataset(path).to_table(columns=[], with_row_id=True).column("_rowid")
        assert len(set(ids.to_pylist())) == 5

    def test_rows_and_progress_are_in_one_version(self, table: memwal.Table) -> None:
        for _ in range(3):
            table.append(rows(1))
            table.merge()
        stored = lance.dataset(table.uri)
        for version in stored.versions():
            base = memwal.open(table.uri).at(version["version"])
            merged = _progress(table, version["version"])
            assert base.count_rows() == merged.get(_UNSHARDED, 0)

    def test_indexes_are_caught_up_and_generations_collected(self, table: memwal.Table) -> None:
        for _ in range(3):
            table.append(rows(*range(50)))
        table.checkpoint()
        status = table.status()
        assert status.backlog_generations == 0
        collect_now(table)
        collect_now(table)
        assert not list(Path(table.uri, "_mem_wal").glob("*/*_gen_*"))
        assert table.count_rows(filter="at = 7") == 3

    def test_copy_compaction_and_snapshot(self, table: memwal.Table, tmp_path: Path) -> None:
        for _ in range(4):
            table.append(rows(1, 2))
            table.merge()
        table.append(rows(1))
        table.build_snapshot()
        table.compact()
        table.copy_to(tmp_path / "copy.lance")
        for one in (table, memwal.open(tmp_path / "copy.lance")):
            assert Counter(moments(one)) == Counter([1, 2] * 4 + [1])
            one.merge()
            assert one.count_rows() == 9
            assert one.verify(deep=True).findings == ()

    def test_regions_are_changed(self, table: memwal.Table) -> None:
        table.append(rows(*range(10), 1))
        memwal.add_region_spec(table.uri, RegionSpec.bucket("at", 3))
        table = memwal.open(table.uri)
        table.append(rows(*range(10)))
        assert Counter(moments(table)) == Counter([*range(10), 1, *range(10)])
        table.merge()
        assert table.count_rows() == 21


class TestQuality:
    @staticmethod
    def rules(mode: str) -> QualityRules:
        """Rules that let moments from 0 on in."""
        bounds = {"column": "at", "min_value": 0}
        suite = [{"type": "expect_column_values_to_be_between", "kwargs": bounds}]
        return QualityRules.from_dict({"mode": mode, "suite": suite})

    def test_rows_are_kept_out_and_released(self, table: memwal.Table) -> None:
        table.append(rows(1, -1, 1, -1))
        table.append(rows(-1, 2))
        result = table.merge(quality=self.rules("quarantine"))
        assert result.quality is not None
        assert moments(table) == [1, 1, 2]
        assert table.verify().findings == ()
        quarantine = Quarantine.of(table.location)
        waiting = waiting_rows(table, quarantine)
        assert waiting.column("at").to_pylist() == [-1, -1, -1]
        released = release(table, quarantine, origins_of(waiting)[:2])
        assert len(released.released) == 2
        assert moments(table) == [-1, -1, 1, 1, 2]

    def test_a_region_is_held(self, table: memwal.Table) -> None:
        table.append(rows(1, 1))
        table.append(rows(-1))
        result = table.merge(quality=self.rules("skip"))
        assert [region.generation for region in result.skipped_regions] == [2]
        assert moments(table.at(table.version)) == [1, 1]
        assert moments(table) == [-1, 1, 1]


def test_a_row_that_an_index_cannot_hold_is_named_by_its_id(uri: str) -> None:
    stored = lance.dataset(uri)
    stored.create_index("v", "IVF_FLAT", num_partitions=1, metric="l2")
    table = memwal.open(uri)
    huge = rows(3).set_column(
        2, SCHEMA.field("v"), pa.array([[3e38] * _SIZE], SCHEMA.field("v").type)
    )
    table.append(huge)
    table.merge()
    for _ in range(2):
        (row,) = table.build_indexes().unindexable_rows
        assert list(row.key) == ["_rowid"]
    assert table.count_rows() == 3


def _progress(table: memwal.Table, version: int) -> dict[UUID, int]:
    from memwal.base_table.commit_records import read_details

    return dict(read_details(table.base(), version).merged)
