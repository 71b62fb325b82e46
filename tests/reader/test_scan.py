"""The merging scan: columns, filters, limits, and what it is asked in vain."""

from collections.abc import Callable, Iterator
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data.tables import SCHEMA, MakeTable, folder, keys, listing, numbered, rows, state
from support.oracles.read_sources import sources_now

import memwal
from memwal.errors import InvalidInputError
from memwal.reader import merged_scan as memtable_filter_module
from memwal.reader import merged_scan as merged_rows_module
from memwal.reader.scan import Scan
from memwal.reader.sources import generation as generations_module

Reads = Any


@pytest.fixture(scope="module", params=["base", "generation", "memtable", "all"])
def reads(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reads]:
    """Rows 1 to 6, of which 2 was changed and 5 deleted, in different places; only to be read."""
    where = request.param
    table = memwal.create(tmp_path_factory.mktemp(where) / "table", SCHEMA, primary_key="id")
    writer = table.writer()
    _fill(table, writer, where)
    yield writer if where in ("memtable", "all") else table
    writer.abort()


def _fill(table: memwal.Table, writer: Any, where: str) -> None:
    first = {key: key * 10 for key in range(1, 7)}
    writer.upsert(rows(first))
    if where == "all":
        writer.flush()
        table.merge()
    writer.upsert(rows({2: 22}))
    if where == "all":
        writer.flush()
    writer.delete(keys(5))
    if where in ("base", "generation"):
        writer.flush()
    if where == "base":
        table.merge()


EXPECTED = {1: 10, 2: 22, 3: 30, 4: 40, 6: 60}


def ids(found: pa.Table) -> list[int]:
    return sorted(found.column("id").to_pylist())


class TestColumns:
    def test_are_all_by_default_in_the_order_of_the_table(self, reads: Reads) -> None:
        found = reads.scan().to_table()
        assert found.schema.equals(
            reads.location and memwal.open(reads.location.uri).schema, check_metadata=False
        )
        assert state(found) == EXPECTED

    @pytest.mark.parametrize("columns", [["text"], ["n", "id"], ["id"], ["text", "n", "id"]])
    def test_come_in_the_order_asked_for(self, reads: Reads, columns: list[str]) -> None:
        found = reads.scan(columns=columns).to_table()
        assert found.column_names == columns
        whole = {key: {"id": key, "n": n, "text": f"{key}={n}"} for key, n in EXPECTED.items()}
        assert sorted(map(str, found.to_pylist())) == sorted(
            str({name: row[name] for name in columns}) for row in whole.values()
        )

    def test_may_be_none_at_all(self, reads: Reads) -> None:
        found = reads.scan(columns=[]).to_reader()
        assert found.schema.names == []
        assert sum(batch.num_rows for batch in found) == 5

    @pytest.mark.parametrize("columns", [["n", "n"], ["id", "n", "id"]])
    def test_that_are_named_twice_are_refused(self, reads: Reads, columns: list[str]) -> None:
        with pytest.raises(InvalidInputError):
            reads.scan(columns=columns).to_table()
        with pytest.raises(InvalidInputError):
            reads.lookup(keys(1), columns=columns).to_table()

    @pytest.mark.parametrize("columns", [["nope"], ["id", "_tombstone"], ["_rowid"]])
    def test_that_do_not_exist_are_refused(self, reads: Reads, columns: list[str]) -> None:
        with pytest.raises(InvalidInputError, match=columns[-1]):
            reads.scan(columns=columns).to_table()


class TestFilter:
    @pytest.mark.parametrize(
        ("predicate", "expected"),
        [
            ("n > 25", [3, 4, 6]),
            ("n = 20", []),
            ("n = 22", [2]),
            ("id in (2, 5)", [2]),
            ("id = 5", []),
            ("text = '2=22' or id = 1", [1, 2]),
            ("n is null", []),
            ("n > 25 or id = 5", [3, 4, 6]),
            ("true", [1, 2, 3, 4, 6]),
            ("false", []),
        ],
    )
    def test_is_for_the_newest_row_of_each_key(
        self, reads: Reads, predicate: str, expected: list[int]
    ) -> None:
        assert ids(reads.scan(filter=predicate).to_table()) == expected
        assert reads.scan(filter=predicate).count_rows() == len(expected)

    def test_may_name_columns_that_are_not_returned(self, reads: Reads) -> None:
        found = reads.scan(columns=["text"], filter="n >= 40 and id < 6").to_table()
        assert found.to_pylist() == [{"text": "4=40"}]

    @pytest.mark.parametrize("predicate", ["nope > 1", "n >", "n = 'x' + ", "unknown_function(n)"])
    def test_that_means_nothing_is_the_callers_mistake(self, reads: Reads, predicate: str) -> None:
        with pytest.raises(InvalidInputError):
            reads.scan(filter=predicate).to_table()


class TestLimit:
    @pytest.mark.parametrize("limit", [0, 1, 2, 3])
    def test_counts_after_the_filter(self, reads: Reads, limit: int) -> None:
        found = reads.scan(filter="n >= 30", limit=limit).to_table()
        assert found.num_rows == limit
        assert all(n >= 30 for n in found.column("n").to_pylist())

    def test_below_zero_is_refused(self, reads: Reads) -> None:
        with pytest.raises(InvalidInputError):
            reads.scan(limit=-1)


class TestHandingOver:
    """To libraries that speak Arrow."""

    @pytest.fixture
    def table(self, make_table: MakeTable) -> memwal.Table:
        table = make_table()
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2, 3: 3}))
            writer.flush()
            table.merge()
            writer.upsert(rows({2: 20}))
            writer.delete(keys(3))
        return table

    def test_lance_when_nothing_waits(self, table: memwal.Table) -> None:
        assert table.to_dataset() is None
        table.merge()
        dataset = table.to_dataset()
        assert dataset is not None
        assert state(dataset.to_table()) == {1: 1, 2: 20}
        with table.writer() as writer:
            writer.upsert(rows({4: 4}))
            assert writer.to_dataset() is None
            assert table.to_dataset() is not None


class TestEmptyTable:
    def test_has_columns_and_no_rows(self, table: memwal.Table) -> None:
        found = table.scan().to_table()
        assert found.schema.names == SCHEMA.names
        assert found.num_rows == 0
        assert table.scan(columns=["n"], filter="n > 1", limit=3).to_table().num_rows == 0
        assert table.scan().count_rows() == 0
        assert table.scan(columns=[]).to_table().num_rows == 0

    def test_reading_writes_nothing(self, table: memwal.Table) -> None:
        before = listing(folder(table))
        table.scan().to_table()
        table.lookup(keys(1)).to_table()
        table.status()
        assert listing(folder(table)) == before


def test_rows_that_were_written_straight_into_the_base_table_are_shown(
    table: memwal.Table,
) -> None:
    table.upsert(rows({1: 1}))
    lance.write_dataset(rows({2: 2, 3: 3}), table.uri, mode="append")
    table.upsert(rows({3: 33}))

    assert state(table) == {1: 1, 2: 2, 3: 33}


def collected(reads: Reads) -> Callable[[], Any]:
    return lambda: sources_now(reads)


class TestOffset:
    @pytest.mark.few(30)
    @pytest.mark.parametrize("offset", [0, 1, 4, 5, 6])
    @pytest.mark.parametrize("limit", [None, 0, 2, 5])
    def test_leaves_rows_out_before_the_limit(
        self, reads: Reads, offset: int, limit: int | None
    ) -> None:
        scan = Scan(collected(reads), offset=offset, limit=limit)
        found = state(scan.to_table())
        expected = max(5 - offset, 0)
        expected = expected if limit is None else min(expected, limit)
        assert len(found) == expected
        assert found.items() <= EXPECTED.items()
        assert scan.count_rows() == expected

    def test_and_limit_together_give_every_row_once(self, reads: Reads) -> None:
        pages = [
            Scan(collected(reads), filter="n > 15", offset=at, limit=2).to_table()
            for at in range(0, 6, 2)
        ]
        assert state(pa.concat_tables(pages)) == {2: 22, 3: 30, 4: 40, 6: 60}

    def test_below_zero_is_refused(self, reads: Reads) -> None:
        with pytest.raises(InvalidInputError):
            Scan(collected(reads), offset=-1)


class TestExtraColumns:
    @pytest.mark.parametrize("columns", [None, ["n"], []])
    @pytest.mark.parametrize("predicate", [None, "n > 25"])
    def test_tell_where_a_row_stands(
        self, reads: Reads, columns: list[str] | None, predicate: str | None
    ) -> None:
        sources = collected(reads)()
        found = Scan(
            lambda: sources,
            columns=columns,
            filter=predicate,
            with_generation=True,
            with_row_address=True,
        ).to_table()
        names = SCHEMA.names if columns is None else columns
        assert found.column_names == [*names, "_gen", "_rowaddr"]
        assert found.num_rows == (5 if predicate is None else 3)
        by_number = {source.generation: source.dataset for source in sources.generations}
        read = {}
        for row in found.to_pylist():
            dataset = by_number.get(row["_gen"], sources.base.dataset)
            assert row["_gen"] == 0 or row["_gen"] in by_number
            (stored,) = dataset._take_rows([row["_rowaddr"]], columns=["id", "n"]).to_pylist()
            read[stored["id"]] = stored["n"]
            assert row.get("n", stored["n"]) == stored["n"]
        assert read == {k: n for k, n in EXPECTED.items() if predicate is None or n > 25}


class TestMemTables:
    @pytest.fixture
    def copies(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """Columns of what is copied for Lance."""
        made: list[list[str]] = []

        def write(rows: pa.Table) -> Any:
            made.append(rows.column_names)
            return lance.write_dataset(rows, "memory://")

        for module in (memtable_filter_module, generations_module):
            monkeypatch.setattr(module, "write_in_memory", write)
        return made

    def test_are_not_copied(self, table: memwal.Table, copies: list[list[str]]) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            writer.delete(keys(2))
            assert state(writer) == {1: 1}
            assert writer.scan().count_rows() == 1
            assert state(writer.lookup(keys(1, 2, 3)).to_table()) == {1: 1}
            assert copies == []

    def test_are_copied_as_far_as_a_filter_names_them(
        self, table: memwal.Table, copies: list[list[str]]
    ) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            found = writer.scan(filter="n > 1 and `text` is not null").to_table()
            assert state(found) == {2: 2}
            assert copies == [["n", "text"]]
            assert writer.scan(filter="N = 1 or true", columns=["id"]).to_table().num_rows == 2


def test_wide_rows_are_compared_a_few_at_a_time(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_rows_module, "_COMPARED_BYTES", 10_000)
    table = make_table()
    with table.writer() as writer:
        writer.upsert(numbered(0, 50_000))
        writer.flush()
        table.merge()
        writer.upsert(rows({7: 77}))
    for predicate in (None, "n = 0 or n = 77"):
        seen = list(table.scan(filter=predicate).to_batches())
        assert len(seen) > 5
        assert max(batch.nbytes for batch in seen) < 1 << 20
        assert sum(batch.num_rows for batch in seen) == 50_000


class TestFilterThatPinsTheKey:
    """With generations beside the base table, the base table's index is still asked."""

    @pytest.fixture
    def base_reads(
        self, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
    ) -> tuple[memwal.Table, list[str], list[int]]:
        """A table with an index and a backlog; how Lance reads its base table, and the rows."""
        table = make_table(buckets=2)
        with table.writer() as writer:
            writer.upsert(numbered(0, 50_000))
            writer.flush()
            table.merge()
            lance.dataset(table.uri).create_scalar_index("id", "BTREE")
            writer.upsert(numbered(49_000, 2_000, n=1))
        plans: list[str] = []
        read: list[int] = []
        plain = lance.LanceScanner.to_batches

        def to_batches(self: Any) -> Iterator[pa.RecordBatch]:
            if f"{table.uri[1:]}/data" not in (plan := self.explain_plan()):
                yield from plain(self)
                return
            plans.append(plan)
            for batch in plain(self):
                read.append(batch.num_rows)
                yield batch

        monkeypatch.setattr(lance.LanceScanner, "to_batches", to_batches)
        return table, plans, read

    @pytest.mark.few(2)
    @pytest.mark.parametrize(
        ("predicate", "expected", "read_rows"),
        [
            ("id = 5", {5: 0}, 1),
            ("id = 49999", {49_999: 1}, 1),
            ("id in (7, 49999, 50001, 90000)", {7: 0, 49_999: 1, 50_001: 1}, 2),
            ("id in (7, 8) and n = 0", {7: 0, 8: 0}, 2),
        ],
    )
    def test_reads_just_these_rows(
        self,
        base_reads: tuple[memwal.Table, list[str], list[int]],
        predicate: str,
        expected: dict[int, int],
        read_rows: int,
    ) -> None:
        table, plans, read = base_reads
        scan = table.scan(filter=predicate)
        assert "ScalarIndexQuery" in scan.explain().base_plan
        assert state(scan.to_table()) == expected
        assert sum(read) == read_rows
        assert scan.count_rows() == len(expected)
        assert len(plans) == 2
        assert all("ScalarIndexQuery" in plan for plan in plans)

    def test_stops_at_the_limit(
        self, base_reads: tuple[memwal.Table, list[str], list[int]]
    ) -> None:
        table, _, read = base_reads
        found = state(table.scan(filter="id < 40000", limit=10).to_table())
        assert len(found) == 10
        assert sum(read) <= 8_192
        assert table.scan(limit=2_010).to_table().num_rows == 2_010
        assert sum(read) <= 2 * 8_192


def test_is_not_asked_for_the_keys_again_of_a_state_that_was_scanned(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(buckets=2)
    with table.writer() as writer:
        writer.upsert(numbered(0, 20_000))
        writer.flush()
        table.merge()
        writer.upsert(numbered(10_000, 20_000, n=1))
    expected = dict.fromkeys(range(10_000), 0) | dict.fromkeys(range(10_000, 30_000), 1)
    assert state(table) == expected
    scanned: list[Any] = []
    plain = lance.LanceDataset.scanner

    def scanner(self: Any, *args: Any, **options: Any) -> Any:
        scanned.append(options.get("columns"))
        return plain(self, *args, **options)

    monkeypatch.setattr(lance.LanceDataset, "scanner", scanner)
    assert table.scan().count_rows() == 30_000
    assert scanned == []
    assert table.scan(columns=["n"]).to_table().num_rows == 30_000
    # The base table alone: the columns of the generations were decoded by the scan before.
    assert scanned == [["n"]]
