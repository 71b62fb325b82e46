"""Taking over a log: in which order, as which generations, in how much memory."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.entries import encode_entry
from support.processes import run_python
from support.stores.faulty_store import WAL, FaultyStore, Killed

from memwal.errors import CorruptDataError, RegionFencedError, StoreAccessError
from memwal.format.paths import wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.format.wal_encoder import encode_sentinel
from memwal.format.wal_entry import decode_entry
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.claim import Claim, claim_region
from memwal.lsm.wal.replay import ReplayedGeneration, replay
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.open import open_store

REGION = uuid4()
ROW_SCHEMA = RowSchema(
    pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64())]), ["id"]
)
LARGE = 1 << 30
NEW = pa.schema([*ROW_SCHEMA.base_schema, ("extra", pa.string())])


class Log:
    """A log that is written entry by entry, as another writer left it."""

    def __init__(self, store: FaultyStore, **manifest: int) -> None:
        self.store = store
        self.tip = manifest.get("replay_after", 0) + 1
        RegionManifestStore(store, REGION).commit(
            RegionManifest(region_id=REGION, version=1, writer_epoch=1, **manifest)
        )

    def put(
        self, *ids: int, generation: int | None = 1, epoch: int = 1, schema: pa.Schema | None = None
    ) -> int:
        """Append an entry; the number in each row is the entry's position."""
        rows = pa.table({"id": list(ids), "n": [self.tip] * len(ids)}, ROW_SCHEMA.base_schema)
        if schema is not None:
            rows = pa.table(
                {field.name: pa.nulls(len(ids), field.type) for field in schema}, schema
            )
        batches = ROW_SCHEMA.convert_upserts(rows) if schema is None else rows.to_batches()
        data = encode_entry(
            batches,
            schema=schema or ROW_SCHEMA.schema,
            writer_epoch=epoch,
            generation=generation or 0,
            writer_id="other",
        )
        if generation is None:
            data = pa.py_buffer(without_generation(batches, epoch))
        return self.put_bytes(bytes(data))

    def put_rows(self, rows: pa.Table, row_schema: RowSchema) -> int:
        """Append an entry in another schema than the others."""
        data = encode_entry(
            row_schema.convert_upserts(rows),
            schema=row_schema.schema,
            writer_epoch=1,
            generation=1,
            writer_id="other",
        )
        return self.put_bytes(bytes(data))

    def put_bytes(self, data: bytes) -> int:
        position, self.tip = self.tip, self.tip + 1
        self.store.inner.create(wal_key(REGION, position), data)
        return position


def without_generation(batches: Sequence[pa.RecordBatch], epoch: int) -> bytes:
    """An entry of a client that does not say which generation it is for."""
    schema = ROW_SCHEMA.schema.with_metadata({"writer_epoch": str(epoch)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    return sink.getvalue().to_pybytes()


def rows_of(found: ReplayedGeneration) -> list[tuple[int, int]]:
    """Key and entry of each row; the ways to get at them must agree."""
    table = pa.Table.from_batches(list(found.contents.batches()), found.contents.schema)
    rows = list(zip(table["id"].to_pylist(), table["n"].to_pylist(), strict=True))
    assert found.contents.keys().to_pylist() == [key for key, _ in rows]
    assert len(rows) == found.rows
    if found.batches is not None:
        held = pa.Table.from_batches(list(found.batches), ROW_SCHEMA.schema)
        assert held.equals(table)
    return rows


def replayed(
    store: FaultyStore, *, max_bytes: int = LARGE, claim: Claim | None = None
) -> dict[int, list[int]]:
    """Generation to the positions of its entries, of the whole replay."""
    claim = claim or claim_region(store, REGION)
    found = {}
    generations = list(replay(store, claim, row_schema=ROW_SCHEMA, max_bytes=max_bytes))
    for generation in generations:
        positions = [position for _, position in rows_of(generation)]
        assert positions == sorted(positions)
        assert generation.last_position == positions[-1]
        found[generation.generation] = sorted(set(positions))
    assert list(found) == sorted(found)
    return found


BUDGETS = pytest.mark.parametrize("max_bytes", [LARGE, 40, 1], ids=["large", "small", "none"])


class TestGenerations:
    @BUDGETS
    def test_are_told_apart_by_their_numbers(self, store: FaultyStore, max_bytes: int) -> None:
        log = Log(store)
        log.put(1, 2, generation=1)
        log.put(2, generation=1)
        log.put(3, generation=2)
        log.put(1, 4, generation=4)

        assert replayed(store, max_bytes=max_bytes) == {1: [1, 2], 2: [3], 4: [4]}

    def test_that_are_flushed_are_skipped(self, store: FaultyStore) -> None:
        log = Log(store, current_generation=3, replay_after=4)
        log.put(1, generation=2)
        log.put(2, generation=3)
        log.put(3, generation=2)

        assert replayed(store) == {3: [6]}

    def test_that_are_not_told_are_those_of_the_entry_before(self, store: FaultyStore) -> None:
        log = Log(store, current_generation=3)
        log.put(1, generation=None)
        log.put(2, generation=4)
        log.put(3, generation=None)

        assert replayed(store) == {3: [1], 4: [2, 3]}

    def test_are_not_made_by_sentinels(self, store: FaultyStore) -> None:
        log = Log(store)
        log.put(1)
        log.put_bytes(encode_sentinel(writer_epoch=1))
        log.put(2)
        log.put_bytes(encode_sentinel(writer_epoch=1))

        assert replayed(store) == {1: [1, 3]}

    @BUDGETS
    def test_end_behind_the_last_entry_with_their_number(
        self, store: FaultyStore, max_bytes: int
    ) -> None:
        """An entry behind the seal of its generation would be skipped by the next replay."""
        log = Log(store)
        for generation in (1, 3, 5, 2, 4):
            log.put(generation, generation=generation)

        assert replayed(store, max_bytes=max_bytes) == {1: [1], 3: [2, 3, 4], 4: [5]}

    @settings(max_examples=40)
    @given(
        numbers=st.lists(st.integers(1, 6) | st.none(), max_size=12),
        current=st.integers(1, 4),
        max_bytes=st.sampled_from([1, 30, 60, LARGE]),
        flushed=st.integers(0, 6),
    )
    def test_can_be_flushed_one_by_one_with_a_death_after_any(
        self, numbers: list[int | None], current: int, max_bytes: int, flushed: int
    ) -> None:
        """Whoever replays next finds exactly the rest, in the same order."""
        store = FaultyStore(open_store(f"memory://{uuid4().hex}/table"))
        log = Log(store, current_generation=current)
        for generation in numbers:
            log.put(1, generation=generation)
        manifests = RegionManifestStore(store, REGION)
        expected = [
            position
            for position, generation in enumerate(numbers, start=1)
            if generation is None or generation >= current
        ]
        claim = claim_region(store, REGION)
        done: list[int] = []
        for found in itertools.islice(
            replay(store, claim, row_schema=ROW_SCHEMA, max_bytes=max_bytes), flushed
        ):
            done += [position for _, position in rows_of(found)]
            manifests.update(
                lambda latest, found=found: replace(  # type: ignore[misc]
                    latest,
                    current_generation=found.generation + 1,
                    replay_after=found.last_position,
                )
            )

        rest = replayed(store, max_bytes=max_bytes)

        assert done + [position for part in rest.values() for position in part] == expected


class TestRefusal:
    @BUDGETS
    @pytest.mark.parametrize(
        "put",
        [
            pytest.param(lambda log: log.put_bytes(b""), id="empty"),
            pytest.param(lambda log: log.put_bytes(strange()), id="no-epoch"),
            pytest.param(
                lambda log: log.put(1, schema=pa.schema([("other", pa.int64())])),
                id="other-columns",
            ),
        ],
    )
    def test_names_the_entry_and_flushes_nothing(
        self, store: FaultyStore, max_bytes: int, put: Callable[[Log], int]
    ) -> None:
        log = Log(store)
        log.put(1, generation=1)
        log.put(2, generation=2)
        position = put(log)
        log.put(3, generation=3)
        claim = claim_region(store, REGION)

        with pytest.raises(CorruptDataError, match=wal_key(REGION, position)):
            next(replay(store, claim, row_schema=ROW_SCHEMA, max_bytes=max_bytes))

    @BUDGETS
    def test_of_a_writer_that_is_fenced_itself(self, store: FaultyStore, max_bytes: int) -> None:
        log = Log(store)
        log.put(1)
        log.put(1, epoch=9)
        # A claim looks at the newest entry only.
        log.put(2)
        claim = claim_region(store, REGION)

        with pytest.raises(RegionFencedError):
            next(replay(store, claim, row_schema=ROW_SCHEMA, max_bytes=max_bytes))

    def test_when_an_entry_is_lost_between_the_two_times_it_is_read(
        self, store: FaultyStore
    ) -> None:
        log = Log(store)
        log.put(1)
        log.put(2)
        (found,) = replay(store, claim_region(store, REGION), row_schema=ROW_SCHEMA, max_bytes=1)
        store.inner.delete(wal_key(REGION, 2))

        with pytest.raises(CorruptDataError, match=wal_key(REGION, 2)):
            list(found.contents.batches())

    def test_when_what_cannot_be_read_is_reported(self, store: FaultyStore) -> None:
        Log(store).put(1)
        claim = claim_region(store, REGION)
        store.fail("get", WAL, StoreAccessError("no"))

        with pytest.raises(StoreAccessError):
            next(replay(store, claim, row_schema=ROW_SCHEMA, max_bytes=LARGE))


def strange() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROW_SCHEMA.schema):
        pass
    return sink.getvalue().to_pybytes()


class TestRows:
    def test_of_other_clients_get_the_stored_form(self, store: FaultyStore) -> None:
        log = Log(store)
        log.put_bytes(
            bytes(
                encode_entry(
                    [
                        pa.record_batch(
                            {"n": [7], "id": [1]},
                            pa.schema([("n", pa.int64()), ("id", pa.int64())]),
                        )
                    ],
                    schema=pa.schema([("n", pa.int64()), ("id", pa.int64())]),
                    writer_epoch=1,
                    generation=1,
                    writer_id="other",
                )
            )
        )
        for max_bytes in (LARGE, 1):
            (found,) = replay(
                store, claim_region(store, REGION), row_schema=ROW_SCHEMA, max_bytes=max_bytes
            )
            (batch,) = found.contents.batches()
            assert batch.schema.equals(ROW_SCHEMA.schema, check_metadata=True)
            assert batch.to_pylist() == [{"id": 1, "n": 7, "_tombstone": False}]

    @pytest.mark.parametrize("max_bytes", [LARGE, 1])
    def test_of_many_small_entries_come_in_few_batches(
        self, store: FaultyStore, max_bytes: int
    ) -> None:
        log = Log(store)
        for number in range(300):
            log.put(number)

        (found,) = replay(
            store, claim_region(store, REGION), row_schema=ROW_SCHEMA, max_bytes=max_bytes
        )

        assert found.log_batches == 300
        assert len(list(found.contents.batches())) == 1
        assert [key for key, _ in rows_of(found)] == list(range(300))

    def test_with_dictionaries_are_not_joined(self, store: FaultyStore) -> None:
        """Indices of 8 bits cannot tell the values of all entries apart."""
        kind = pa.dictionary(pa.int8(), pa.string())
        row_schema = RowSchema(
            pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", kind)]), ["id"]
        )
        log = Log(store)
        for number in range(300):
            rows = pa.table({"id": [number], "word": pa.array([f"{number}"]).cast(kind)})
            log.put_rows(rows, row_schema)
        for max_bytes in (LARGE, 1):
            claim = claim_region(store, REGION)
            (found,) = replay(store, claim, row_schema=row_schema, max_bytes=max_bytes)
            words = [value for b in found.contents.batches() for value in b["word"].to_pylist()]
            assert words == [f"{number}" for number in range(300)]

    def test_have_keys_of_several_columns(self, store: FaultyStore) -> None:
        row_schema = RowSchema(
            pa.schema(
                [
                    pa.field("a", pa.string(), nullable=False),
                    pa.field("b", pa.int32(), nullable=False),
                ]
            ),
            ["a", "b"],
        )
        log = Log(store)
        for number in range(3):
            rows = pa.table({"a": ["x"], "b": [number % 2]}, row_schema.base_schema)
            log.put_rows(rows, row_schema)
        keys = []
        for max_bytes in (LARGE, 1):
            claim = claim_region(store, REGION)
            (found,) = replay(store, claim, row_schema=row_schema, max_bytes=max_bytes)
            keys.append(found.contents.keys())

        assert keys[0].equals(keys[1])
        assert keys[0][0] == keys[0][2] != keys[0][1]


class TestBudget:
    def test_decides_whether_rows_stay_in_memory(self, store: FaultyStore) -> None:
        log = Log(store)
        for number in range(10):
            log.put(*range(100), generation=1 + number // 5)
        claim = claim_region(store, REGION)
        size = sum(
            batch.nbytes
            for found in replay(store, claim, row_schema=ROW_SCHEMA, max_bytes=LARGE)
            for batch in found.batches or ()
        )

        def kept(max_bytes: int) -> list[bool]:
            return [
                found.batches is not None
                for found in replay(store, claim, row_schema=ROW_SCHEMA, max_bytes=max_bytes)
            ]

        assert kept(size + 10) == [True, True]
        # Not both at once; the last stays open for more.
        assert kept(size - 10) == [False, True]
        assert kept(size // 3) == [False, False]

    def test_reads_a_log_that_fits_once(self, store: FaultyStore) -> None:
        log = Log(store)
        for number in range(20):
            log.put(number, generation=1 + number // 4)
        claim = claim_region(store, REGION)
        store.clear()

        list(replay(store, claim, row_schema=ROW_SCHEMA, max_bytes=LARGE))

        # And the fence.
        assert store.count("get", WAL) == 21
        assert len(store.calls) == 21


class TestTornEntries:
    @pytest.mark.parametrize("size", [0, 40])
    def test_that_only_sentinels_follow_are_replaced(self, store: FaultyStore, size: int) -> None:
        log = Log(store)
        log.put(1)
        torn = log.put(666)
        key = wal_key(REGION, torn)
        store.put(key, store.get(key)[:size])
        log.put_bytes(encode_sentinel(writer_epoch=2))
        RegionManifestStore(store, REGION).commit(
            RegionManifest(region_id=REGION, version=2, writer_epoch=2)
        )

        assert replayed(store) == {1: [1]}

        entry = decode_entry(store.get(key), name=key)
        assert (entry.is_sentinel, entry.writer_epoch) == (True, 3)

    def test_are_told_of(self, store: FaultyStore, caplog: pytest.LogCaptureFixture) -> None:
        log = Log(store)
        log.put(1)
        log.put_bytes(b"")
        log.put_bytes(encode_sentinel(writer_epoch=1))

        replayed(store)

        (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
        assert str(REGION) in warning.getMessage()


class TestInterruption:
    @staticmethod
    def log_of(store: FaultyStore) -> None:
        log = Log(store)
        log.put(1, generation=1)
        log.put(2, generation=2)
        log.put_bytes(b"")
        log.put_bytes(encode_sentinel(writer_epoch=1))

    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    @pytest.mark.parametrize("max_bytes", [LARGE, 1])
    def test_by_death_at_any_request_loses_nothing(
        self, tmp_path: Path, after: bool, max_bytes: int
    ) -> None:
        number, died = 0, True
        while died:
            store = FaultyStore(open_store(tmp_path / f"{number}", durable=False))
            self.log_of(store)
            claim = claim_region(store, REGION)
            store.clear()
            rule = store.kill("*", skip=number, after=after)
            with suppress(Killed):
                replayed(store, claim=claim, max_bytes=max_bytes)
            died = bool(rule.hits)
            store.clear()
            assert replayed(store, max_bytes=max_bytes) == {1: [1], 2: [2]}
            number += 1
        assert number > 6


def peak_growth(tmp_path: Path, *, rows: int, rows_per_entry: int, generations: int) -> int:
    """Bytes by which the memory of a process grows that replays a log of 8 MiB budget."""
    script = Path(__file__).parent / "_replay_child.py"
    result = run_python(script, tmp_path / "log", rows, rows_per_entry, generations)
    growth, seen = map(int, result.stdout.split())
    assert seen == rows
    return growth


MEMORY = 96 << 20
"""Budget, what is read ahead, keys of 16 bytes twice over, and what allocators keep."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("rows", "generations", "rows_per_entry"),
    [
        (450_000, 8, 500),
        pytest.param(450_000, 1, 5000, marks=pytest.mark.slow),
        pytest.param(1_000_000, 1, 500, marks=pytest.mark.slow),
        pytest.param(1_000_000, 20, 500, marks=pytest.mark.soak),
        pytest.param(1_000_000, 1, 20, marks=pytest.mark.soak),
    ],
)
def test_memory_does_not_grow_with_the_log(
    tmp_path: Path, rows: int, generations: int, rows_per_entry: int
) -> None:
    """The rows take at least twice as much."""
    growth = peak_growth(
        tmp_path, rows=rows, rows_per_entry=rows_per_entry, generations=generations
    )

    assert growth < MEMORY
