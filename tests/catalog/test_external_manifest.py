import contextlib
import re
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session
from support.data.tables import SCHEMA, MakeTable, base_state, collect_now, rows, state
from support.stores.careless_store import CarelessStore
from support.stores.faulty_store import Killed

import memwal
from memwal.base_table.region_snapshot import external_key, read_snapshot
from memwal.base_table.snapshot import open_base
from memwal.catalog import external_manifest
from memwal.catalog.database import Database
from memwal.catalog.external_manifest import STAGING, ExternalManifestStore
from memwal.catalog.models import ExternalObjectRow
from memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    ObjectExistsError,
    ObjectNotFoundError,
    PartialWriteError,
    RegionFencedError,
    StoreUnavailableError,
    UnsupportedStoreError,
)
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.options import SnapshotOptions
from memwal.jobs.table.snapshot import build_snapshot
from memwal.quality.quarantine import Quarantine, logged_rows
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage import location
from memwal.storage.local import LocalStore
from memwal.storage.location import TableLocation
from memwal.storage.open import check_put_if_absent, open_store

REGION = UUID(int=7)
FOLDER = f"_mem_wal/{REGION}/manifest"
KEY = f"{FOLDER}/1.binpb"
NOW = timedelta(0)


class FaultyDatabase(Database):
    """A database whose transactions fail, or end the process, before or after they are committed.

    ``plan`` holds for each of the next ones ``None``, or an error and whether it comes after.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.plan: list[tuple[BaseException, bool] | None] = []

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        step = self.plan.pop(0) if self.plan else None
        if step is not None and not step[1]:
            raise step[0]
        with super().writing() as session:
            yield session
        if step is not None:
            raise step[0]


@pytest.fixture
def inner(tmp_path: Path) -> CarelessStore:
    return CarelessStore(LocalStore(tmp_path / "table", durable=False))


@pytest.fixture
def faulty(database: Database, each_url: str) -> Iterator[FaultyDatabase]:
    faulty = FaultyDatabase(each_url)
    yield faulty
    faulty.engine.dispose()


@pytest.fixture
def store(inner: CarelessStore, faulty: FaultyDatabase) -> ExternalManifestStore:
    return ExternalManifestStore(inner, faulty)


@pytest.fixture
def other(tmp_path: Path, database: Database) -> ExternalManifestStore:
    """Return the store of another process, without faults."""
    return ExternalManifestStore(
        CarelessStore(LocalStore(tmp_path / "table", durable=False)), database
    )


def names(store: ExternalManifestStore, prefix: str) -> list[str]:
    return sorted(info.key for info in store.list(prefix))


def staged(inner: CarelessStore) -> list[str]:
    return [info.key for info in inner.inner.list(STAGING)]


def test_the_store_below_lets_everybody_in(inner: CarelessStore) -> None:
    with pytest.raises(UnsupportedStoreError):
        check_put_if_absent(inner)


def test_a_name_is_taken_once(
    store: ExternalManifestStore, other: ExternalManifestStore, inner: CarelessStore
) -> None:
    check_put_if_absent(store)
    store.create(KEY, memoryview(b"first"))
    with pytest.raises(ObjectExistsError):
        other.create(KEY, b"second")
    assert inner.inner.get(KEY) == other.get(KEY) == b"first"
    assert other.get_range(KEY, start=1, length=2) == b"ir"
    assert names(other, FOLDER) == [KEY]
    assert staged(inner) == []
    assert inner.count("create") == 0


def test_only_what_memwal_creates_itself_is_covered(store: ExternalManifestStore) -> None:
    for key in ("_versions/1.manifest-5", "data/x.lance", f"_mem_wal/{REGION}/x/y/z"):
        with pytest.raises(UnsupportedStoreError):
            store.create(key, b"x")


def test_objects_from_before_the_catalog_are_not_overwritten(
    store: ExternalManifestStore, inner: CarelessStore
) -> None:
    inner.inner.put(KEY, b"old")
    with pytest.raises(ObjectExistsError):
        store.create(KEY, b"new")
    assert store.get(KEY) == b"old"
    assert inner.count("put") == 0


def test_tables_do_not_share_names(
    tmp_path: Path, store: ExternalManifestStore, database: Database
) -> None:
    elsewhere = ExternalManifestStore(LocalStore(tmp_path / "other", durable=False), database)
    store.create(KEY, b"here")
    elsewhere.create(KEY, b"there")
    assert (store.get(KEY), elsewhere.get(KEY)) == (b"here", b"there")
    store.delete_folder("_mem_wal")
    assert elsewhere.get(KEY) == b"there"


COMMITTED_FROM = 2
STEPS = ["staging", "row", "final", "mark", "discard"]
CRASHES = [(step, after) for step in range(len(STEPS)) for after in (False, True)]
LOOKS = ["get", "get_range", "head", "list", "create", "collect"]
# Every look after every crash, once; each of them on both databases.
CRASHES_AND_LOOKS = [
    (("sqlite", "postgresql")[(number + place) % 2], *crash, look)
    for number, crash in enumerate(CRASHES)
    for place, look in enumerate(LOOKS)
]


def break_at(
    inner: CarelessStore,
    database: FaultyDatabase,
    step: int,
    after: bool,
    error: BaseException,
) -> None:
    match STEPS[step]:
        case "staging":
            inner.fail("put", f"{STAGING}/*", error, after=after)
        case "row":
            database.plan = [(error, after)]
        case "final":
            inner.fail("put", KEY, error, after=after)
        case "mark":
            database.plan = [None, (error, after)]
        case _:
            inner.fail("delete", f"{STAGING}/*", error, after=after)


def is_committed(step: int, after: bool) -> bool:
    return step >= COMMITTED_FROM or (STEPS[step] == "row" and after)


@pytest.mark.few(12)
@pytest.mark.parametrize(("kind", "step", "after", "look"), CRASHES_AND_LOOKS, indirect=["kind"])
def test_a_process_that_dies_has_committed_or_not(
    store: ExternalManifestStore,
    other: ExternalManifestStore,
    inner: CarelessStore,
    faulty: FaultyDatabase,
    step: int,
    after: bool,
    look: str,
) -> None:
    break_at(inner, faulty, step, after, Killed())
    with pytest.raises(Killed):
        store.create(KEY, b"first")

    # Whatever the others look with first, they find the same.
    committed = is_committed(step, after)
    match look:
        case "get" | "get_range":
            with contextlib.suppress(ObjectNotFoundError):
                part = other.get_range(KEY, start=0, length=9)
                assert part == b"first" == other.get(KEY)
        case "head":
            assert (other.head(KEY) is not None) == committed
        case "list":
            assert names(other, FOLDER) == ([KEY] if committed else [])
        case "collect":
            other.delete_stale_temporaries("", older_than=NOW)
            assert staged(inner) == []
        case _:
            pass
    if committed:
        with pytest.raises(ObjectExistsError):
            other.create(KEY, b"second")
    else:
        other.create(KEY, b"second")
    expected = b"first" if committed else b"second"
    assert other.get(KEY) == inner.inner.get(KEY) == expected
    assert names(other, "") == [KEY]
    other.delete_stale_temporaries("", older_than=NOW)
    assert staged(inner) == []
    assert other.get(KEY) == expected


@pytest.mark.few(8)
@pytest.mark.parametrize(("step", "after"), CRASHES)
def test_an_answer_that_is_lost_is_settled(
    store: ExternalManifestStore,
    other: ExternalManifestStore,
    inner: CarelessStore,
    faulty: FaultyDatabase,
    step: int,
    after: bool,
) -> None:
    manifests = RegionManifestStore(store, REGION)
    first = RegionManifest(
        region_id=REGION, version=1, spec_id=0, writer_epoch=1, current_generation=1
    )
    error = StoreUnavailableError("no answer")
    match STEPS[step]:
        case "final":
            inner.fail("put", f"{FOLDER}/*.binpb", error, after=after)
        case _:
            break_at(inner, faulty, step, after, error)
    # The same bytes again are the same commit.
    manifests.commit(first)
    assert RegionManifestStore(other, REGION).read_latest() == first
    assert manifests.read_latest() == first


def test_a_committed_object_outlives_its_committer_and_a_collection(
    store: ExternalManifestStore, other: ExternalManifestStore, inner: CarelessStore
) -> None:
    inner.kill("put", KEY)
    with pytest.raises(Killed):
        store.create(KEY, b"first")
    assert not inner.inner.exists(KEY)
    other.delete_stale_temporaries("", older_than=timedelta(hours=1))
    assert len(staged(inner)) == 1
    other.delete_stale_temporaries("", older_than=NOW)
    assert inner.inner.get(KEY) == b"first"


def test_a_creator_that_slept_through_a_collection_starts_over(
    store: ExternalManifestStore, other: ExternalManifestStore, inner: CarelessStore
) -> None:
    asleep = inner.pause("put", f"{STAGING}/*", after=True)
    with asleep.holding(store.create, KEY, b"late") as creating:
        other.delete_stale_temporaries("", older_than=NOW)
        assert staged(inner) == []
        other.expect_new_table()
    creating.result()
    assert inner.count("put", f"{STAGING}/*") == 2
    assert other.get(KEY) == inner.inner.get(KEY) == b"late"


def test_a_creator_that_slept_before_its_row_loses(
    store: ExternalManifestStore, other: ExternalManifestStore, inner: CarelessStore
) -> None:
    asleep = inner.pause("put", f"{STAGING}/*", after=True)
    with asleep.holding(store.create, KEY, b"late") as creating:
        other.create(KEY, b"early")
    with pytest.raises(ObjectExistsError):
        creating.result()
    assert other.get(KEY) == b"early"
    assert staged(inner) == []


def test_two_that_finish_the_same_commit_do_no_harm(
    store: ExternalManifestStore, other: ExternalManifestStore, inner: CarelessStore
) -> None:
    asleep = inner.pause("put", KEY)
    with asleep.holding(store.create, KEY, b"first") as creating:
        assert other.get(KEY) == b"first"
    creating.result()
    assert store.get(KEY) == b"first"
    assert staged(inner) == []


def test_a_staged_object_that_is_lost_is_told_and_not_papered_over(
    store: ExternalManifestStore, other: ExternalManifestStore, inner: CarelessStore
) -> None:
    inner.kill("put", KEY)
    with pytest.raises(Killed):
        store.create(KEY, b"first")
    inner.inner.delete_folder(STAGING)
    with pytest.raises(CorruptDataError, match=re.escape(KEY)):
        other.get(KEY)


def test_a_deleted_name_is_free_and_leaves_no_row(
    store: ExternalManifestStore, other: ExternalManifestStore, database: Database
) -> None:
    wal = f"_mem_wal/{REGION}/wal"
    keys = [f"{wal}/{n}.arrow" for n in range(3)]
    for key in keys:
        store.create(key, b"x")
    other.delete_many(keys[:2])
    assert names(store, "") == keys[2:]
    store.create(keys[0], b"again")
    assert store.get(keys[0]) == b"again"
    other.delete_folder(wal)
    assert names(store, "") == []
    with database.reading() as session:
        assert session.scalars(select(ExternalObjectRow)).all() == []


def test_a_new_table_keeps_the_rows_that_others_may_need(
    store: ExternalManifestStore, other: ExternalManifestStore, inner: CarelessStore
) -> None:
    version, unfinished = "_versions/1.manifest", f"{FOLDER}/2.binpb"
    store.create(version, b"x")
    store.create(KEY, b"first")
    inner.kill("put", unfinished)
    with pytest.raises(Killed):
        store.create(unfinished, b"second")
    inner.inner.delete(KEY)
    # There is a table.
    other.expect_new_table()
    with pytest.raises(ObjectExistsError):
        other.create(KEY, b"again")
    inner.inner.delete(version)
    other.expect_new_table()
    other.create(KEY, b"again")
    with pytest.raises(ObjectExistsError):
        other.create(unfinished, b"again")
    assert other.get(unfinished) == b"second"


def test_a_death_between_row_and_object_leaves_the_name_taken(
    store: ExternalManifestStore, other: ExternalManifestStore, inner: CarelessStore
) -> None:
    store.create(KEY, b"first")
    inner.kill("delete", KEY)
    with pytest.raises(Killed):
        store.delete(KEY)
    with pytest.raises(ObjectExistsError):
        other.create(KEY, b"second")
    other.delete(KEY)
    assert not other.exists(KEY)


@pytest.fixture
def commits_in(
    database: Database, each_url: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Return the storage options of a table whose commits the database decides."""
    monkeypatch.setenv("COMMITS", each_url)
    # The fixture closes the connections of this one.
    monkeypatch.setattr(external_manifest, "Database", {each_url: database}.__getitem__)
    return {location.COMMITS_IN: "COMMITS"}


@pytest.fixture
def careless_tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, CarelessStore]:
    """Every table lies in a store without put-if-absent."""
    found: dict[str, CarelessStore] = {}

    def open_careless(uri: str, options: object, *, durable: bool) -> CarelessStore:
        return found.setdefault(uri, CarelessStore(open_store(uri, durable=False)))

    monkeypatch.setattr(location, "open_store", open_careless)
    return found


@pytest.mark.few(1)
def test_a_table_lives_in_such_a_store(
    careless_tables: dict[str, CarelessStore], commits_in: dict[str, str], make_table: MakeTable
) -> None:
    table = make_table(buckets=2, maintained_indexes=["id_idx"], storage_options=commits_in)
    with pytest.raises(RegionFencedError), table.writer() as writer:
        writer.upsert(rows(dict.fromkeys(range(20), 1)))
        writer.flush()
        writer.upsert(rows(dict.fromkeys(range(10), 2)))
        with table.writer() as second:
            second.upsert(rows(dict.fromkeys(range(5), 3)))
        with pytest.raises((RegionFencedError, PartialWriteError)):
            writer.upsert(rows({0: 9}))
    expected = {key: 3 if key < 5 else 2 if key < 10 else 1 for key in range(20)}
    assert state(table) == expected
    table.checkpoint()
    collect_now(table)
    assert base_state(table) == expected
    table.upsert(rows({100: 5}))
    assert state(table) == {**expected, 100: 5}
    (inner,) = careless_tables.values()
    assert inner.count("create") == 0


def test_a_table_is_created_again_where_one_was_deleted(
    careless_tables: dict[str, CarelessStore], commits_in: dict[str, str], tmp_path: Path
) -> None:
    for turn in range(2):
        table = memwal.create(
            tmp_path / "again", SCHEMA, primary_key=["id"], storage_options=commits_in
        )
        table.upsert(rows({turn: 1}))
        table.checkpoint()
        assert base_state(table) == state(table) == {turn: 1}
        shutil.rmtree(table.uri)
        # As in another process: in this one, the table could only be away.
        careless_tables.clear()
        location._shared_store.cache_clear()


def test_a_quarantine_is_created_again_where_one_was_deleted(
    careless_tables: dict[str, CarelessStore], commits_in: dict[str, str], tmp_path: Path
) -> None:
    for turn in range(2):
        quarantine = Quarantine(TableLocation(str(tmp_path / "again"), commits_in))
        found = rows({turn: 1, 5: 5})
        reasons, numbers = ["bad"] * 2, np.arange(2)
        quarantine.write(
            logged_rows(REGION, "x", found, generation=1, numbers=numbers, reasons=reasons)
        )
        assert open_base(quarantine.location).dataset.count_rows() == 2
        shutil.rmtree(tmp_path / "again")
        # As in another process: in this one, the table could only be away.
        careless_tables.clear()
        location._shared_store.cache_clear()


@pytest.mark.few(1)
def test_a_log_is_abandoned_and_a_large_snapshot_taken_in_such_a_store(
    careless_tables: dict[str, CarelessStore], commits_in: dict[str, str], make_table: MakeTable
) -> None:
    table = make_table(buckets=3, storage_options=commits_in)
    writer = table.writer()
    writer.upsert(rows(dict.fromkeys(range(20), 1)))
    writer.abort()
    with table.writer(replay=False) as second:
        second.claim()
        second.upsert(rows({7: 7}))
    assert state(table) == {7: 7}

    build_snapshot(table.location, SnapshotOptions(inline_regions=2))

    details = table.base().details
    assert external_key(details) is not None
    assert len(read_snapshot(table.location.store, details) or {}) == 3
    (inner,) = careless_tables.values()
    assert inner.count("create") == 0


def test_a_version_of_the_base_table_whose_committer_died_is_found_by_the_next(
    careless_tables: dict[str, CarelessStore],
    commits_in: dict[str, str],
    make_table: MakeTable,
    database: Database,
) -> None:
    table = make_table(buckets=1, storage_options=commits_in)
    (inner,) = careless_tables.values()
    before = table.base().version
    table.build_snapshot()
    # As if its committer had died after the row.
    with database.writing() as session:
        rows = session.scalars(select(ExternalObjectRow)).all()
        versions = (row for row in rows if row.key.startswith("_versions/"))
        # The newest comes first.
        row = min(versions, key=lambda row: row.key)
        inner.inner.put(row.staged, inner.inner.get(row.key))
        inner.inner.delete(row.key)
        row.final = False
    # Lance does not know of it yet.
    assert table.base().version == before
    table.build_snapshot()
    assert table.base().version == before + 2
    assert staged(inner) == []


class TestStorageOption:
    """``memwal_commits_in``, by which a table names the database."""

    def test_leads_every_process_to_the_database(
        self, tmp_path: Path, database: Database, commits_in: dict[str, str]
    ) -> None:
        found = TableLocation(str(tmp_path / "table"), commits_in)
        store = found.store
        assert isinstance(store, ExternalManifestStore)
        assert not store.lance_commits
        store.create(KEY, b"first")
        with pytest.raises(ObjectExistsError):
            store.create(KEY, b"second")
        with database.reading() as session:
            assert session.scalars(select(ExternalObjectRow)).all()

    def test_of_a_variable_that_is_not_set_says_so(self, tmp_path: Path) -> None:
        found = TableLocation(str(tmp_path / "other"), {location.COMMITS_IN: "NO_COMMITS"})
        with pytest.raises(InvalidInputError, match="NO_COMMITS"):
            _ = found.store
