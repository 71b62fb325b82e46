"""Appending to the log of a region, and reading it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.claims import claim_at
from support.data.entries import append, encode_entry
from support.faults.between_calls import away_between, moments_away
from support.stores.faulty_store import WAL, FaultyStore, Killed

from memwal.errors import (
    CorruptDataError,
    MemWalError,
    OutcomeUnknownError,
    RegionFencedError,
    RegionLostError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
)
from memwal.format.paths import manifest_key, region_dir, wal_key
from memwal.format.region_manifest import RegionManifest
from memwal.format.wal_encoder import encode_sentinel
from memwal.format.wal_entry import WalEntry, decode_entry
from memwal.lsm.wal.appender import ConvertEntry, LogAppender
from memwal.lsm.wal.log import fence, find_tip, needs_replay, read_log, survey_log
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectInfo
from memwal.storage.open import open_store

REGION = uuid4()
SCHEMA = pa.schema([("id", pa.int64())])
EPOCH = 5


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    """Store with a region that was claimed once."""
    inner = open_store(tmp_path / "table", durable=False)
    RegionManifestStore(inner, REGION).commit(
        RegionManifest(region_id=REGION, version=1, writer_epoch=1)
    )
    return FaultyStore(inner)


def batch(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def entry(*ids: int, epoch: int, generation: int = 1, writer_id: str = "other") -> bytes:
    """An entry of some other writer."""
    return bytes(
        encode_entry(
            [batch(*ids)],
            schema=SCHEMA,
            writer_epoch=epoch,
            generation=generation,
            writer_id=writer_id,
        )
    )


def native_entry(*ids: int, epoch: int) -> bytes:
    """An entry as Lance writes it: without writer and checksum."""
    sink = pa.BufferOutputStream()
    schema = SCHEMA.with_metadata({"writer_epoch": str(epoch), "generation": "1"})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch(*ids).replace_schema_metadata(schema.metadata))
    return sink.getvalue().to_pybytes()


def put(store: FaultyStore, position: int, data: bytes) -> None:
    store.inner.create(wal_key(REGION, position), data)


def appender(
    store: FaultyStore,
    *,
    next_position: int = 1,
    verify: Callable[[], None] = lambda: None,
    interval: float = 0.0,
    clock: Callable[[], float] = lambda: 0.0,
    convert: ConvertEntry = lambda position, entry: list(entry.batches),
) -> LogAppender:
    return LogAppender(
        store,
        claim_at(REGION, epoch=EPOCH, next_position=next_position),
        schema=SCHEMA,
        convert=convert,
        verify_epoch=verify,
        start_check=lambda: lambda: None,
        check_interval=interval,
        clock=clock,
    )


def stored(store: FaultyStore) -> dict[int, WalEntry]:
    """Every entry, by position, up to the first free one."""
    return dict(read_log(store, REGION, after=0, epoch=10**9))


def ids(found: WalEntry) -> list[int]:
    return [value for b in found.batches for value in b.column("id").to_pylist()]


class TestFindTip:
    @given(taken=st.integers(0, 70), start=st.integers(1, 71))
    def test_finds_the_first_free_position(self, taken: int, start: int) -> None:
        log = StubLog(set(range(1, taken + 1)))
        start = min(start, taken + 1)

        assert find_tip(log, REGION, start=start) == taken + 1  # type: ignore[arg-type]

    @pytest.mark.parametrize("instead", [None, ["manifest/version_hint.json", "wal/x"]])
    def test_while_the_folder_of_the_region_is_away(
        self, store: FaultyStore, instead: list[str] | None
    ) -> None:
        for position in (1, 2, 3):
            put(store, position, b"x")
        path = Path(store.uri) / region_dir(REGION)
        for first, last in moments_away(path, lambda: find_tip(store, REGION, start=2)):
            with (
                away_between(path, first, last, instead=instead),
                suppress(RegionLostError, StoreUnavailableError),
            ):
                assert find_tip(store, REGION, start=2) == 4

    def test_asks_a_logarithmic_number_of_times(self, store: FaultyStore) -> None:
        for position in range(1, 400):
            put(store, position, b"x")
        store.clear()

        assert find_tip(store, REGION, start=1) == 400
        assert len(store.calls) < 20


class TestSurvey:
    def test_tells_where_the_log_ends_and_how_large_its_entries_are(
        self, store: FaultyStore
    ) -> None:
        data = {position: entry(*range(position), epoch=1) for position in range(1, 30)}
        for position, content in data.items():
            put(store, position, content)

        survey = survey_log(store, REGION, after=20)

        assert (survey.after, survey.tip, survey.missing) == (20, 30, None)
        assert survey.entries["position"].tolist() == list(range(21, 30))
        listed = [len(data[position]) for position in range(21, 30)]
        assert survey.sizes(range(21, 30)) == listed
        (assumed,) = set(survey.sizes([3, 20, 30]))
        assert survey.sizes([20, 22, 29, 31]) == [assumed, listed[1], listed[-1], assumed]

    @pytest.mark.parametrize(("after", "hint"), [(0, 0), (7, 0), (7, 7), (7, 3)])
    def test_of_an_empty_log_is_whole(self, store: FaultyStore, after: int, hint: int) -> None:
        store.inner.delete(manifest_key(REGION, 1))
        with pytest.raises(RegionLostError):
            survey_log(store, REGION, after=after, hint=hint)
        assert survey_log(store, REGION, after=0, is_new=True).tip == 1
        store.put(manifest_key(REGION, 1), b"")
        survey = survey_log(store, REGION, after=after, hint=hint)

        assert (survey.tip, survey.missing) == (after + 1, None)

    @given(taken=st.sets(st.integers(1, 40)), after=st.integers(0, 41), hint=st.integers(0, 41))
    def test_finds_the_first_gap(self, taken: set[int], after: int, hint: int) -> None:
        survey = survey_log(StubLog(taken), REGION, after=after, hint=hint)  # type: ignore[arg-type]

        newest = max({after, hint} | taken)
        assert survey.tip == newest + 1
        absent = [p for p in range(after + 1, newest + 1) if p not in taken]
        assert survey.missing == (absent[0] if absent else None)

    @given(taken=st.integers(0, 40), listed=st.sets(st.integers(1, 40)), after=st.integers(0, 40))
    def test_does_not_believe_that_a_listing_is_complete(
        self, taken: int, listed: set[int], after: int
    ) -> None:
        log = StubLog(set(range(1, taken + 1)), listed & set(range(1, taken + 1)))

        survey = survey_log(log, REGION, after=min(after, taken))  # type: ignore[arg-type]

        assert (survey.tip, survey.missing) == (taken + 1, None)

    @given(
        first=st.integers(0, 30),
        lost=st.sets(st.integers(1, 40), max_size=2),
        appended=st.integers(0, 80),
        lost_later=st.none() | st.integers(0, 80),
        flushed=st.integers(0, 30),
        collected=st.integers(0, 30),
    )
    def test_goes_on_from_an_earlier_one_as_if_the_log_were_listed(
        self,
        first: int,
        lost: set[int],
        appended: int,
        lost_later: int | None,
        flushed: int,
        collected: int,
    ) -> None:
        """Except that an entry that was listed and is lost since is for the replay to notice."""
        before = StubLog(set(range(1, first + 1)) - lost)
        earlier = survey_log(before, REGION, after=0)  # type: ignore[arg-type]
        after = min(flushed, first)
        lost = {position for position in lost if position < earlier.tip}
        taken = set(range(1, earlier.tip + appended)) - lost
        if lost_later is not None:
            taken -= {earlier.tip + lost_later}
        taken -= set(range(1, min(collected, after) + 1))
        log = StubLog(taken)

        listed = survey_log(log, REGION, after=after)  # type: ignore[arg-type]
        survey = survey_log(log, REGION, after=after, earlier=earlier)  # type: ignore[arg-type]

        assert (survey.after, survey.tip) == (listed.after, listed.tip)
        assert survey.missing == listed.missing
        assert survey.entries["position"].tolist() == listed.entries["position"].tolist()

    def test_leaves_other_files_alone(self, store: FaultyStore) -> None:
        put(store, 1, b"x")
        store.put(wal_key(REGION, 2) + ".copy", b"x")
        store.put(wal_key(REGION, 3).replace("wal/", "wal/old/"), b"x")

        survey = survey_log(store, REGION, after=0)

        assert (survey.tip, survey.missing) == (2, None)


class StubLog:
    """Which positions a log has, and which of them a listing shows."""

    def __init__(self, taken: set[int], listed: set[int] | None = None) -> None:
        self._taken = {wal_key(REGION, position) for position in taken}
        self._listed = taken if listed is None else listed

    def exists(self, key: str) -> bool:
        return key in self._taken

    def exists_within(self, key: str, *, within: str, proof: str) -> bool:
        return self.exists(key)

    def list(self, prefix: str) -> list[ObjectInfo]:
        now = datetime.now(UTC)
        return [ObjectInfo(wal_key(REGION, position), 1, now) for position in self._listed]


@pytest.mark.parametrize(
    ("content", "generation", "wanted"),
    [
        ([1], 3, True),
        ([1], 4, True),
        ([1], 2, False),
        ([1], None, True),
        ([], 3, False),
        (None, None, False),
    ],
)
def test_what_is_replayed(content: list[int] | None, generation: int | None, wanted: bool) -> None:
    found = WalEntry(
        writer_epoch=1,
        generation=generation,
        is_sentinel=content is None,
        batches=() if content is None else (batch(*content),),
        schema=SCHEMA,
        writer_id=None,
    )

    assert needs_replay(found, current_generation=3) is wanted


class TestAppend:
    def test_takes_the_next_positions_without_gaps(self, store: FaultyStore) -> None:
        log = appender(store, next_position=3)

        positions = [append(log, [batch(n)], generation=7).position for n in range(5)]

        assert positions == [3, 4, 5, 6, 7]
        found = decode_entry(store.get(wal_key(REGION, 4)), name="entry")
        assert (ids(found), found.writer_epoch, found.generation) == ([1], EPOCH, 7)
        assert found.writer_id == "me"

    @pytest.mark.parametrize(
        "disturb",
        [
            pytest.param(lambda s: s.fail("create", WAL), id="not-there"),
            pytest.param(lambda s: s.fail("create", WAL, after=True), id="there"),
            pytest.param(lambda s: s.claim_exists("create", WAL), id="our-own"),
            pytest.param(lambda s: s.fail("create", WAL, times=4), id="not-there-4-times"),
            pytest.param(
                lambda s: (s.claim_exists("create", WAL), s.fail("get", WAL)), id="not-read-back"
            ),
        ],
    )
    def test_settles_an_ambiguous_answer(
        self, store: FaultyStore, disturb: Callable[[FaultyStore], object]
    ) -> None:
        log = appender(store)
        disturb(store)

        assert append(log, [batch(1)], generation=1).position == 1
        assert append(log, [batch(2)], generation=1).position == 2
        store.clear()

        assert {position: ids(e) for position, e in stored(store).items()} == {1: [1], 2: [2]}

    def test_reports_when_the_outcome_stays_unknown(self, store: FaultyStore) -> None:
        store.fail("create", WAL, times=1000)

        with pytest.raises(OutcomeUnknownError):
            append(appender(store), [batch(1)], generation=1)

    @pytest.mark.parametrize("error", [StoreFullError("full"), StoreAccessError("no")])
    def test_a_refusal_leaves_the_position_free(
        self, store: FaultyStore, error: MemWalError
    ) -> None:
        log = appender(store)
        store.fail("create", WAL, error)

        with pytest.raises(type(error)):
            append(log, [batch(1)], generation=1)

        assert append(log, [batch(2)], generation=1).position == 1
        assert {position: ids(e) for position, e in stored(store).items()} == {1: [2]}

    @pytest.mark.parametrize("error", [StoreFullError("full"), StoreAccessError("no")])
    def test_a_refusal_after_an_ambiguous_answer_is_not_called_a_refusal(
        self, store: FaultyStore, error: MemWalError
    ) -> None:
        """The first request may have stored the entry; "not accepted" would be wrong."""
        store.fail("create", WAL, after=True)
        store.fail("create", WAL, error)

        with pytest.raises(OutcomeUnknownError):
            append(appender(store), [batch(1)], generation=1)

    def test_is_fenced_by_a_higher_epoch(self, store: FaultyStore) -> None:
        put(store, 1, encode_sentinel(writer_epoch=EPOCH + 1))

        with pytest.raises(RegionFencedError):
            append(appender(store), [batch(1)], generation=1)


class TestForeignEntries:
    @pytest.mark.parametrize("make", [entry, native_entry])
    def test_of_a_lower_epoch_are_taken_up_in_front_of_our_own(
        self, store: FaultyStore, make: Callable[..., bytes]
    ) -> None:
        put(store, 1, make(10, 11, epoch=EPOCH - 1))
        put(store, 2, make(12, epoch=EPOCH - 2))

        appended = append(appender(store), [batch(1)], generation=1)

        assert appended.position == 3
        assert [value for b in appended.entry.batches for value in b.column("id").to_pylist()] == [
            10,
            11,
            12,
            1,
        ]
        assert ids(stored(store)[3]) == [10, 11, 12, 1]

    def test_a_late_sentinel_of_a_lower_epoch_is_stepped_over(self, store: FaultyStore) -> None:
        put(store, 1, encode_sentinel(writer_epoch=EPOCH - 1))

        appended = append(appender(store), [batch(1)], generation=1)

        assert (appended.position, len(appended.entry.batches)) == (2, 1)

    @pytest.mark.parametrize("error", [StoreFullError("full"), StoreAccessError("no")])
    def test_are_not_lost_when_our_own_entry_is_refused(
        self, store: FaultyStore, error: MemWalError
    ) -> None:
        """Who wrote them was told that they are durable, and the writer goes on behind them."""
        put(store, 1, entry(10, epoch=EPOCH - 1))
        store.fail("create", WAL, error, skip=1)
        log = appender(store)
        with pytest.raises(type(error)):
            append(log, [batch(1)], generation=1)

        appended = append(log, [batch(2)], generation=1)

        assert [v for b in appended.entry.batches for v in b.column("id").to_pylist()] == [10, 2]
        assert ids(stored(store)[appended.position]) == [10, 2]

    def test_that_do_not_fit_the_table_are_not_stepped_over(self, store: FaultyStore) -> None:
        """Whoever wrote them was told that they are durable: a human must look."""
        put(store, 1, entry(10, epoch=EPOCH - 1))

        def refuse(position: int, entry: WalEntry) -> list[pa.RecordBatch]:
            raise CorruptDataError("column x is missing")

        log = appender(store, convert=refuse)
        for number in (1, 2):
            with pytest.raises(MemWalError):
                append(log, [batch(number)], generation=1)

        assert list(stored(store)) == [1]

    def test_end_the_writer_when_the_epoch_cannot_be_read(self, store: FaultyStore) -> None:
        """Its rows are in the log, and the next claim brings all of them back in order."""
        put(store, 1, entry(10, epoch=EPOCH - 1))

        def verify() -> None:
            raise StoreUnavailableError("500")

        with pytest.raises(OutcomeUnknownError):
            append(appender(store, verify=verify), [batch(1)], generation=1)

        assert ids(stored(store)[2]) == [10, 1]

    def test_an_epoch_that_cannot_be_read_for_a_moment_is_read_again(
        self, store: FaultyStore
    ) -> None:
        answers = iter([StoreUnavailableError("500"), StoreUnavailableError("500"), None])

        def verify() -> None:
            error = next(answers)
            if error is not None:
                raise error

        assert append(appender(store, verify=verify), [batch(1)], generation=1).position == 1


class TestTornEntries:
    @pytest.mark.parametrize("size", [0, 3, 60])
    def test_at_the_tip_are_replaced(self, store: FaultyStore, size: int) -> None:
        put(store, 1, entry(666, epoch=EPOCH - 1)[:size])

        assert append(appender(store), [batch(1)], generation=1).position == 1
        assert {position: ids(e) for position, e in stored(store).items()} == {1: [1]}

    def test_with_entries_behind_them_stop_the_writer_and_change_nothing(
        self, store: FaultyStore
    ) -> None:
        put(store, 1, b"")
        put(store, 2, entry(1, epoch=EPOCH - 1))

        with pytest.raises(CorruptDataError):
            append(appender(store), [batch(1)], generation=1)

        assert store.get(wal_key(REGION, 1)) == b""
        assert not store.exists(wal_key(REGION, 3))

    def test_with_only_sentinels_behind_them_are_replaced(self, store: FaultyStore) -> None:
        put(store, 1, b"")
        put(store, 2, encode_sentinel(writer_epoch=EPOCH - 1))
        put(store, 3, b"")

        assert append(appender(store), [batch(1)], generation=1).position == 1

    def test_with_the_sentinel_of_a_newer_writer_behind_them_fence(
        self, store: FaultyStore
    ) -> None:
        """Whoever put it has read the log without the entry."""
        put(store, 1, b"")
        put(store, 2, encode_sentinel(writer_epoch=EPOCH + 1))

        with pytest.raises(RegionFencedError):
            append(appender(store), [batch(1)], generation=1)

        assert store.get(wal_key(REGION, 1)) == b""

    def test_that_somebody_else_replaced_first_are_looked_at_again(
        self, store: FaultyStore
    ) -> None:
        put(store, 1, b"")
        pause = store.pause("replace", WAL)
        with pause.holding(append, appender(store), [batch(1)], generation=1) as appending:
            store.inner.put(wal_key(REGION, 1), encode_sentinel(writer_epoch=EPOCH + 1))

        assert isinstance(appending.exception(), RegionFencedError)

    def test_whose_replacement_is_ambiguous_do_not_make_a_second_position(
        self, store: FaultyStore
    ) -> None:
        put(store, 1, b"")
        store.fail("replace", WAL, after=True)
        log = appender(store)

        try:
            append(log, [batch(1)], generation=1)
            expected = {1: [1], 2: [2]}
        except StoreUnavailableError:
            # Not acknowledged, but there: what follows must not lose or repeat it elsewhere.
            expected = {1: [1], 2: [1, 2]}
        append(log, [batch(2)], generation=1)

        assert {position: ids(e) for position, e in stored(store).items()} == expected


class TestEpochCheck:
    def test_comes_after_the_entry_and_before_the_answer(self, store: FaultyStore) -> None:
        seen = []
        log = appender(store, verify=lambda: seen.append(store.exists(wal_key(REGION, 1))))

        append(log, [batch(1)], generation=1)

        assert seen == [True]

    def test_is_relied_on_for_the_interval(self, store: FaultyStore) -> None:
        now, looks = [0.0], []
        log = appender(
            store, verify=lambda: looks.append(now[0]), interval=10.0, clock=lambda: now[0]
        )

        for moment in (0.0, 1.0, 9.9, 10.0, 15.0, 20.5):
            now[0] = moment
            append(log, [batch(1)], generation=1)

        assert looks == [0.0, 10.0, 20.5]

    def test_counts_the_time_before_the_entry_is_put(self, store: FaultyStore) -> None:
        """Asleep between two lines, too: the look must be younger than the answer."""
        now = [0.0]
        looks = []

        def verify() -> None:
            looks.append(now[0])

        log = appender(store, verify=verify, interval=10.0, clock=lambda: now[0])
        append(log, [batch(1)], generation=1)
        real = store.inner.create

        def slow(key: str, data: bytes) -> None:
            now[0] += 60.0
            real(key, data)

        store.inner.create = slow  # type: ignore[method-assign]
        append(log, [batch(2)], generation=1)

        assert looks == [0.0, 60.0]


class TestReadLog:
    def test_is_of_the_entries_between_two_positions(self, store: FaultyStore) -> None:
        for position in (1, 2, 3):
            put(store, position, entry(position, epoch=1))

        found = list(read_log(store, REGION, after=1, epoch=1))

        assert [(position, ids(e)) for position, e in found] == [(2, [2]), (3, [3])]
        assert [p for p, _ in read_log(store, REGION, after=0, before=3, epoch=1)] == [1, 2]

    def test_refuses_a_gap_and_names_it(self, store: FaultyStore) -> None:
        for position in (1, 2, 5, 6):
            put(store, position, entry(position, epoch=1))

        with pytest.raises(CorruptDataError, match=wal_key(REGION, 3)):
            list(read_log(store, REGION, after=0, epoch=1))

    def test_does_not_care_for_what_is_missing_before_its_start(self, store: FaultyStore) -> None:
        for position in (1, 4, 5):
            put(store, position, entry(position, epoch=1))

        assert [p for p, _ in read_log(store, REGION, after=3, epoch=1)] == [4, 5]

    def test_of_a_region_that_was_claimed_meanwhile_is_fenced_not_damaged(
        self, store: FaultyStore
    ) -> None:
        """Whoever has it flushed what was there, and a collector took it."""
        for position in (1, 2):
            put(store, position, entry(position, epoch=1))
        survey = survey_log(store, REGION, after=0)
        store.inner.delete(wal_key(REGION, 1))
        RegionManifestStore(store, REGION).commit(
            RegionManifest(region_id=REGION, version=2, writer_epoch=2, replay_after=2)
        )

        with pytest.raises(RegionFencedError):
            list(read_log(store, REGION, after=0, epoch=1, survey=survey))

    def test_takes_a_torn_entry_for_absent_when_only_sentinels_follow(
        self, store: FaultyStore
    ) -> None:
        """Lance puts its sentinel behind a torn entry before it fails at it."""
        put(store, 1, entry(1, epoch=1))
        put(store, 2, b"")
        put(store, 3, encode_sentinel(writer_epoch=2))
        put(store, 4, entry(1, epoch=1)[:50])
        put(store, 5, encode_sentinel(writer_epoch=3))

        assert [p for p, _ in read_log(store, REGION, after=0, epoch=3)] == [1, 3, 5]

    def test_names_the_torn_entry(self, store: FaultyStore) -> None:
        put(store, 1, entry(1, epoch=1))
        put(store, 2, b"")
        put(store, 3, encode_sentinel(writer_epoch=2))
        put(store, 4, entry(1, epoch=1))

        with pytest.raises(CorruptDataError, match=wal_key(REGION, 2)):
            list(read_log(store, REGION, after=0, epoch=3))

    def test_ends_at_a_torn_tip(self, store: FaultyStore) -> None:
        put(store, 1, entry(1, epoch=1))
        put(store, 2, b"")

        assert [position for position, _ in read_log(store, REGION, after=0, epoch=1)] == [1]


def test_a_sentinel_steps_over_what_was_appended_meanwhile(store: FaultyStore) -> None:
    put(store, 1, entry(1, epoch=1))
    with store.pause("create", WAL).holding(
        fence, store, REGION, epoch=EPOCH, writer_id="me", after=0, hint=0
    ) as fencing:
        put(store, 2, entry(2, epoch=1))

    assert fencing.result() == 3
    assert [ids(e) for e in stored(store).values()] == [[1], [2], []]


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_claim_that_was_overtaken_puts_no_sentinel(
    store: FaultyStore, *, meanwhile: bool
) -> None:
    put(store, 1, entry(1, epoch=1))
    newer = encode_sentinel(writer_epoch=EPOCH + 1, writer_id="you")
    if not meanwhile:
        put(store, 2, newer)
    pause = store.pause("create", WAL) if meanwhile else None
    with ThreadPoolExecutor(1) as pool:
        older = pool.submit(fence, store, REGION, epoch=EPOCH, writer_id="me", after=0, hint=0)
        if pause is not None:
            pause.wait_until_reached()
            put(store, 2, entry(2, epoch=1))
            put(store, 3, newer)
            pause.release()
        with pytest.raises(RegionFencedError):
            older.result()

    assert [e.writer_epoch for e in stored(store).values()][-1] == EPOCH + 1


@pytest.mark.parametrize("number", range(3))
def test_a_claim_that_dies_among_torn_entries_is_repeated(store: FaultyStore, number: int) -> None:
    put(store, 1, entry(1, epoch=1))
    for position in (2, 3, 4):
        put(store, position, b"")
    store.kill("replace", WAL, skip=number)
    with pytest.raises(Killed):
        fence(store, REGION, epoch=EPOCH, writer_id="me", after=0, hint=0)

    assert fence(store, REGION, epoch=EPOCH + 1, writer_id="you", after=0, hint=0) == 4

    assert [e.writer_epoch for e in stored(store).values()] == [
        1,
        *[EPOCH] * number,
        *[EPOCH + 1] * (3 - number),
    ]
