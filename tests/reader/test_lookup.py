"""Looking rows up by key."""

import shutil
from collections.abc import Iterator
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader
from support.data.tables import REGION, SCHEMA, MakeTable, folder, keys, numbered, rows, state
from support.oracles.read_sources import sources_now

import memwal
from memwal.errors import InvalidInputError
from memwal.format.bloom import FILTER_BYTES, BloomFilter, hash_keys
from memwal.format.paths import region_dir
from memwal.reader import lookup as lookup_module
from memwal.reader.lookup import lookup_rows
from memwal.reader.sources import key_index
from memwal.reader.sources.key_index import key_positions, might_hold


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> memwal.Table:
    """Return the table of ``spread``; only to be read."""
    return memwal.create(tmp_path_factory.mktemp("spread") / "table", SCHEMA, primary_key="id")


@pytest.fixture(scope="module")
def spread(shared: memwal.Table) -> Iterator[memwal.Writer]:
    """1 to 4 in the base table, 3 to 6 flushed, 5 to 8 in the MemTable; 2, 4 and 6 deleted."""
    table = shared
    writer = table.writer()
    writer.upsert(rows(dict.fromkeys(range(1, 5), 1)))
    writer.flush()
    table.merge()
    writer.upsert(rows(dict.fromkeys(range(3, 7), 2)))
    writer.delete(keys(2))
    writer.flush()
    writer.upsert(rows(dict.fromkeys(range(5, 9), 3)))
    writer.delete(keys(4, 6))
    yield writer
    writer.abort()


EXPECTED = {1: 1, 3: 2, 5: 3, 7: 3, 8: 3}


class TestAnswer:
    def test_has_the_newest_row_of_each_key_that_exists(self, spread: Any) -> None:
        assert state(spread.lookup(keys(*range(12))).to_table()) == EXPECTED

    @settings(max_examples=30)
    @given(asked=st.lists(st.integers(0, 10), max_size=12))
    def test_is_in_the_order_of_the_keys(self, asked: list[int]) -> None:
        order = self._found(asked)
        last = {key: position for position, key in enumerate(asked)}
        assert order == sorted({key for key in asked if key in EXPECTED}, key=last.__getitem__)

    @pytest.fixture(autouse=True)
    def _reads(self, spread: Any) -> None:
        type(self)._found = staticmethod(  # type: ignore[attr-defined]
            lambda asked: spread.lookup(keys(*asked)).to_table().column("id").to_pylist()
        )

    @pytest.mark.parametrize("none", [[], [2, 99]])
    def test_is_empty_without_rows(
        self, spread: Any, shared: memwal.Table, none: list[int]
    ) -> None:
        for reads in (spread, shared):
            found = reads.lookup(keys(*none)).to_table()
            assert found.num_rows == 0
            assert found.schema.names == ["id", "n", "text"]

    @pytest.mark.parametrize("columns", [["n"], ["text", "id"], []])
    def test_has_the_columns_asked_for(self, spread: Any, columns: list[str]) -> None:
        found = spread.lookup(keys(8, 2, 1, 3), columns=columns).to_table()
        assert found.column_names == columns
        assert found.to_pylist() == [
            {name: {"id": key, "n": n, "text": f"{key}={n}"}[name] for name in columns}
            for key, n in ((8, 3), (1, 1), (3, 2))
        ]

    def test_without_columns_counts_the_keys(self, spread: Any) -> None:
        assert spread.lookup(keys(8, 2, 1), columns=[]).count_rows() == 2

    def test_of_the_table_is_what_is_flushed(self, spread: Any, shared: memwal.Table) -> None:
        assert state(shared.lookup(keys(*range(12))).to_table()) == {1: 1, 3: 2, 4: 2, 5: 2, 6: 2}


class TestMistakes:
    @pytest.mark.parametrize(
        "wrong",
        [
            pytest.param([1, "2"], id="a list of both"),
            pytest.param(pa.array(["1"]), id="another type"),
            pytest.param(pa.array([1, None], pa.int64()), id="a null"),
            pytest.param(pa.table({"n": [1]}), id="no key"),
        ],
    )
    def test_in_keys_are_refused(self, table: memwal.Table, wrong: Any) -> None:
        with pytest.raises(InvalidInputError):
            table.lookup(wrong).to_table()

    def test_in_columns_are_refused(self, table: memwal.Table) -> None:
        with pytest.raises(InvalidInputError):
            table.lookup(keys(1), columns=["nope"]).to_table()


def test_no_keys_of_a_table_that_is_merged_whole(make_table: MakeTable) -> None:
    table = make_table()
    table.upsert(rows({1: 1}))
    table.merge()

    assert table.lookup(keys()).to_table().num_rows == 0


def test_more_keys_than_a_predicate_takes(make_table: MakeTable) -> None:
    table = make_table(buckets=2)
    with table.writer() as writer:
        writer.upsert(numbered(0, 9000))
        writer.flush()
        table.merge()
        writer.upsert(numbered(4000, 1000, n=1))
        writer.delete(keys(*range(100)))

    asked = list(range(8999, -1, -1))
    found = table.lookup(keys(*asked, 10_000)).to_table()

    assert found.column("id").to_pylist() == asked[:-100]
    assert state(found) == {key: int(4000 <= key < 5000) for key in range(100, 9000)}


def test_composite_keys_are_not_every_combination_of_their_columns(make_table: MakeTable) -> None:
    schema = pa.schema(
        [
            pa.field("n", pa.int64()),
            pa.field("b", pa.string(), nullable=False),
            pa.field("a", pa.int32(), nullable=False),
        ]
    )
    table = make_table(schema, primary_key=("a", "b"))
    pairs = [(a, b) for a in range(3) for b in ("", "x", "y")]
    data = pa.table(
        {
            "n": range(9),
            "b": [b for _, b in pairs],
            "a": pa.array([a for a, _ in pairs], pa.int32()),
        },
        schema=schema,
    )
    with table.writer() as writer:
        writer.upsert(data)
        writer.flush()
        table.merge()
        asked = data.take(pa.array([8, 0, 4])).select(["a", "b"])
        assert table.lookup(asked).to_table().column("n").to_pylist() == [8, 0, 4]
        writer.delete(asked.slice(1, 1))
        assert writer.lookup(asked).to_table().column("n").to_pylist() == [8, 4]
        assert writer.lookup(asked, columns=["n"]).to_table().column("n").to_pylist() == [8, 4]
    assert table.lookup(asked).to_table().column("n").to_pylist() == [8, 4]
    with pytest.raises(InvalidInputError, match="a, b"):
        table.lookup(pa.array([1], pa.int32())).to_table()
    with pytest.raises(InvalidInputError, match="missing"):
        table.lookup(asked.select(["a"])).to_table()


def looked_up(reads: Any, asked: pa.Array | pa.Table) -> pa.Table:
    columns = asked if isinstance(asked, pa.Table) else pa.table({"id": asked})
    return lookup_rows(sources_now(reads), columns)


class TestSkipping:
    def test_asks_a_generation_for_keys_that_no_newer_one_has(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with table.writer() as writer:
            for n in range(3):
                writer.upsert(rows({1: n, n + 10: n}))
                writer.flush()
        asked: list[list[int]] = []

        def positions(location: Any, folder: str, wanted: pa.Array) -> Any:
            asked.append(wanted.to_pylist())
            return key_positions(location, folder, wanted)

        monkeypatch.setattr(lookup_module, "key_positions", positions)
        found = looked_up(table, keys(1, 10, 12, 99))
        assert state(found) == {1: 2, 10: 0, 12: 2}
        # The filters keep the other keys away, and 1 is not asked for again.
        assert asked == [[1, 12], [10]]

    @pytest.fixture
    def ranges(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """How many values of a key index each read takes."""
        ranges: list[int] = []
        plain = LanceFileReader.read_range

        def read_range(self: Any, start: int, count: int, **options: Any) -> Any:
            ranges.append(count)
            return plain(self, start, count, **options)

        monkeypatch.setattr(LanceFileReader, "read_range", read_range)
        monkeypatch.setattr(
            lookup_module, "find_newest", lambda *_: pytest.fail("all keys were read")
        )
        return ranges

    @pytest.fixture
    def paged(self, make_table: MakeTable) -> memwal.Table:
        """A table of one generation, whose key index has thirteen pages."""
        table = make_table()
        table.upsert(numbered(0, 100_000))
        return table

    def test_reads_neither_all_keys_nor_the_rows_of_others(
        self, paged: memwal.Table, monkeypatch: pytest.MonkeyPatch, ranges: list[int]
    ) -> None:
        monkeypatch.setattr(key_index, "MAX_KEPT_BYTES", 0)
        assert state(looked_up(paged, keys(5, 30_000))) == {5: 0, 30_000: 0}
        assert ranges == [8192, 8192]
        assert looked_up(paged, keys(6, 30_001, 99_999)).num_rows == 3
        assert ranges == [8192, 8192, 100_000 % 8192]

    def test_keeps_a_whole_key_index_that_many_lookups_ask(
        self, paged: memwal.Table, ranges: list[int]
    ) -> None:
        for _ in range(4):
            assert state(looked_up(paged, keys(5, 101_000))) == {5: 0}
        found = looked_up(paged, keys(39_999, 8_192, 8_191))
        assert state(found) == {39_999: 0, 8_192: 0, 8_191: 0}
        assert ranges == [8192, 100_000]

    def test_keeps_no_whole_key_index_that_is_large(
        self, paged: memwal.Table, monkeypatch: pytest.MonkeyPatch, ranges: list[int]
    ) -> None:
        monkeypatch.setattr(key_index, "MAX_KEPT_BYTES", 40_000)
        for key in range(0, 100_000, 8_192):
            assert state(looked_up(paged, keys(key))) == {key: 0}
        assert ranges == [8192] * 12 + [100_000 % 8192]

    def test_does_not_read_a_key_index_whole_for_each_lookup_if_the_cache_drops_it(
        self, paged: memwal.Table, ranges: list[int]
    ) -> None:
        for _ in range(8):
            assert state(looked_up(paged, keys(5))) == {5: 0}
            key_index._sorted.clear()
        # Thirteen pages: all are read for every second lookup, and the first one once.
        assert ranges == [8192] + [100_000] * 4

    def test_asks_only_the_region_that_a_key_belongs_to(
        self, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = make_table(buckets=4)
        table.upsert(numbered(0, 1000))
        folders: list[str] = []

        def filters(base: Any, folder: str, hashes: Any) -> Any:
            folders.append(folder)
            return might_hold(base, folder, hashes)

        monkeypatch.setattr(lookup_module, "might_hold", filters)
        assert state(looked_up(table, keys(5))) == {5: 0}
        assert len(folders) == 1

    def test_routes_by_a_key_of_any_name(self, make_table: MakeTable) -> None:
        schema = pa.schema([pa.field("key", pa.int64(), nullable=False), ("n", pa.int64())])
        table = make_table(schema, primary_key=("key",), buckets=4)
        with table.writer() as writer:
            writer.upsert({"key": list(range(20)), "n": [0] * 20})
            writer.flush()
            assert table.lookup(keys(7)).to_table().to_pylist() == [{"key": 7, "n": 0}]

    def test_opens_few_of_many_generations(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those whose filters were read, and do not rule the key out, or were not read yet."""
        expected: dict[int, int | None] = {}
        tested: list[str] = []

        def filters(base: Any, folder: str, hashes: Any) -> Any:
            tested.append(folder)
            return might_hold(base, folder, hashes)

        monkeypatch.setattr(lookup_module, "might_hold", filters)
        with table.writer() as writer:
            for number in range(40):
                writer.upsert(rows({number: number, 1_000: number}))
                expected |= {number: number, 1_000: number}
                if number % 10 == 9:
                    writer.delete(keys(number - 3))
                    del expected[number - 3]
                writer.flush()
            every = keys(*range(45), 1_000)
            # The newest generation has one key; the filters of the others are read for another.
            assert state(table.lookup(keys(1_000, -1)).to_table()) == {1_000: 39}
            assert len(tested) == 40
            for key in (*range(45), 1_000):
                tested.clear()
                found = state(table.lookup(keys(key)).to_table())
                assert found == {k: v for k, v in expected.items() if k == key}
                assert len(tested) <= 3
            assert state(table.lookup(every).to_table()) == expected
            assert state(table.lookup(pa.array(range(1_500))).to_table()) == expected
            writer.upsert(rows({2: 22}))
            writer.flush()
            assert state(table.lookup(keys(2, 3)).to_table()) == {2: 22, 3: 3}
            table.merge()
            writer.upsert(rows({4: 44}))
            writer.delete(keys(5))
            writer.flush()
            assert state(table.lookup(keys(2, 3, 4, 5)).to_table()) == {2: 22, 3: 3, 4: 44}

    def test_forgets_filters_of_merged_generations(
        self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(key_index, "_MAX_FORGOTTEN", 4)
        for turn in range(3):
            with table.writer() as writer:
                for number in range(20):
                    writer.upsert(rows({number: turn}))
                    writer.flush()
            for _ in range(2):
                assert state(table.lookup(keys(3, 99)).to_table()) == {3: turn}
            key = key_index._filters_key(table.base(), region_dir(REGION))
            filters = key_index._filters.use(key)
            assert filters is not None
            assert 20 <= len(filters.read) <= 20 + 4
            table.merge()

    @pytest.mark.parametrize("lost", ["bloom_filter.bin", "_pk_index"])
    def test_goes_without_what_a_generation_does_not_have(
        self, table: memwal.Table, lost: str
    ) -> None:
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            writer.flush()
            writer.upsert(rows({2: 22, 3: 33}))
        for path in folder(table).glob(f"_mem_wal/*/*_gen_*/{lost}"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        assert state(looked_up(table, keys(1, 2, 3, 4))) == {1: 1, 2: 22, 3: 33}

    def test_finds_rows_in_each_fragment_of_a_generation(self, table: memwal.Table) -> None:
        table.upsert(rows({key: key for key in range(100)}))
        (path,) = folder(table).glob("_mem_wal/*/*_gen_*/_pk_index")
        stored = lance.dataset(path.parent).to_table()
        lance.write_dataset(stored, path.parent, mode="overwrite", max_rows_per_file=30)
        assert len(lance.dataset(path.parent).get_fragments()) == 4
        assert state(looked_up(table, keys(29, 30, 65, 99, 100))) == {
            29: 29,
            30: 30,
            65: 65,
            99: 99,
        }

    @pytest.mark.parametrize("spoil", ["kept", "gone", "damaged"])
    def test_a_full_filter_is_not_asked_but_a_sized_one(
        self, make_table: MakeTable, spoil: str
    ) -> None:
        table = make_table()
        table.upsert(numbered(0, 100_000))
        (path,) = folder(table).glob("_mem_wal/*/*_gen_*/bloom_filter.bin")
        assert BloomFilter.from_bytes(path.read_bytes()).bits_set > 0.9 * 8 * FILTER_BYTES
        sized = path.with_name("memwal_bloom.bin")
        if spoil == "gone":
            # As in a generation of another client.
            sized.unlink()
        elif spoil == "damaged":
            content = bytearray(sized.read_bytes())
            content[1_000:2_000] = bytes(1_000)
            sized.write_bytes(content)
        name = str(path.parent.relative_to(folder(table)))
        might = might_hold(table.base(), name, hash_keys([keys(*range(-20, 0), 5)]))
        assert might.tolist() == [spoil != "kept"] * 20 + [True]
        assert state(looked_up(table, keys(-1, 5))) == {5: 0}
