"""Committing new MemWAL details as a strict compare-and-swap."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import lance
import pytest
from lance.commit import CommitConflictError
from support.data.tables import MakeTable, base_state, folder, keys, merged, rows, state
from support.stores.faulty_store import TABLE_MANIFEST, FaultyStore, FaultyStores

import memwal
from memwal.base_table.commit import (
    commit_details,
    commit_durably,
    is_conflict,
    update_details,
)
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.errors import (
    ConflictError,
    MemWalError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
    TableSetupError,
)
from memwal.format.memwal_index import IndexDetails
from memwal.storage.location import TableLocation

# A version that is not named yet.
STAGED = "_versions/*.manifest-*"


@pytest.fixture
def store(faults: FaultyStores, table: memwal.Table) -> FaultyStore:
    return faults.of(table.location)


def stamped(base: BaseTable, millis: int) -> IndexDetails:
    return replace(base.details, snapshot_ts_millis=millis)


def upsert(values: dict[int, int | None]) -> Callable[[lance.LanceDataset], object]:
    def commit(dataset: lance.LanceDataset) -> object:
        merge = dataset.merge_insert(["id"]).when_matched_update_all().when_not_matched_insert_all()
        return merge.conflict_retries(0).execute(rows(values))

    return commit


def natively(table: memwal.Table, values: dict[int, int | None]) -> None:
    """What somebody else commits, past everything of ours."""
    merge = lance.dataset(table.uri).merge_insert(["id"])
    merge.when_matched_update_all().when_not_matched_insert_all().execute(rows(values))


def leftovers(table: memwal.Table) -> list[str]:
    """Files in the folder of versions that are no version."""
    names = [path.name for path in (folder(table) / "_versions").iterdir()]
    return [name for name in names if not name.endswith((".manifest", "hint.json"))]


def test_changes_nothing_else(make_table: MakeTable) -> None:
    table = make_table(maintained_indexes=["id_idx"])
    table.upsert(rows({1: 1, 2: 2}))
    table.merge()
    before = table.base()

    commit_details(before, stamped(before, 7))

    after = table.base()
    assert after.schema == before.schema
    assert after.primary_key == before.primary_key
    assert after.dataset.to_table() == before.dataset.to_table()
    assert {index.name for index in after.dataset.describe_indices()} == {
        index.name for index in before.dataset.describe_indices()
    }
    table.delete(keys(1))
    table.merge()
    assert state(table) == {2: 2}


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda t: t.merge(), id="merge"),
        pytest.param(
            lambda t: lance.write_dataset(rows({9: 9}), t.uri, mode="append"), id="append"
        ),
        pytest.param(lambda t: commit_details(t.base(), stamped(t.base(), 3)), id="details"),
        pytest.param(lambda t: t.base().dataset.create_scalar_index("n", "BTREE"), id="index"),
    ],
)
def test_is_refused_when_anything_landed_since(
    table: memwal.Table, act: Callable[[memwal.Table], object]
) -> None:
    table.upsert(rows({1: 1}))
    base = table.base()
    act(table)
    now = table.base()
    assert now.version > base.version

    with pytest.raises(ConflictError) as raised:
        commit_details(base, stamped(base, 7))

    # Lance knows as well: it has not looked for the version that was refused again and again.
    assert isinstance(raised.value.__cause__, CommitConflictError)
    after = table.base()
    assert after.version == now.version
    assert after.details == now.details
    assert leftovers(table) == []


@pytest.mark.parametrize("unanswered", [False, True])
def test_is_refused_when_something_lands_in_the_last_moment(
    store: FaultyStore, table: memwal.Table, unanswered: bool
) -> None:
    """Also after a first request that failed, which may have landed."""
    table.upsert(rows({1: 1}))
    base = table.base()
    if unanswered:
        store.fail("create", TABLE_MANIFEST)
    pause = store.pause("create", TABLE_MANIFEST)
    with pause.holding(commit_details, base, stamped(base, 7)) as committing:
        table.merge()

    assert isinstance(committing.exception(), ConflictError)
    assert merged(table) == 1
    assert table.base().details.snapshot_ts_millis == 0


def test_is_refused_when_the_version_that_was_read_is_cleaned_up_as_well(
    store: FaultyStore, table: memwal.Table
) -> None:
    table.upsert(rows({1: 1}))
    base = table.base()
    pause = store.pause("create", TABLE_MANIFEST)
    with pause.holding(commit_details, base, stamped(base, 7)) as committing:
        table.merge()
        lance.dataset(table.uri).cleanup_old_versions(older_than=timedelta(0))
        assert base.version not in [v["version"] for v in lance.dataset(table.uri).versions()]

    assert isinstance(committing.exception(), ConflictError)
    assert merged(table) == 1
    assert table.base().details.snapshot_ts_millis == 0


@pytest.mark.parametrize("kind", ["not there", "there", "our own", "not there, 4 times"])
def test_an_ambiguous_answer_is_settled(store: FaultyStore, table: memwal.Table, kind: str) -> None:
    base = table.base()
    if kind == "our own":
        store.claim_exists("create", TABLE_MANIFEST)
    else:
        store.fail("create", TABLE_MANIFEST, after=kind == "there", times=4 if "4" in kind else 1)

    version = commit_details(base, stamped(base, 7))

    assert version == base.version + 1 == table.base().version
    assert table.base().details.snapshot_ts_millis == 7


@pytest.mark.parametrize("after", [False, True], ids=["not there", "there"])
def test_an_outcome_that_stays_unknown_is_reported(
    store: FaultyStore, table: memwal.Table, after: bool
) -> None:
    base = table.base()
    store.fail("create", TABLE_MANIFEST, after=after)
    store.fail("create", TABLE_MANIFEST, times=100)

    with pytest.raises(OutcomeUnknownError):
        commit_details(base, stamped(base, 7))

    store.clear()
    assert (table.base().version == base.version + 1) == after


@pytest.mark.parametrize("error", [StoreAccessError("no"), StoreFullError("full")])
def test_a_refusal_of_the_store_is_not_called_a_conflict(
    store: FaultyStore, table: memwal.Table, error: MemWalError
) -> None:
    base = table.base()
    store.fail("create", TABLE_MANIFEST, error, times=100)

    with pytest.raises(type(error)):
        commit_details(base, stamped(base, 7))
    with pytest.raises(type(error)):
        update_details(table.location, lambda base: stamped(base, 7))

    assert table.base().version == base.version


def test_a_table_without_mem_wal_is_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "plain")
    lance.write_dataset(rows({1: 1}), uri)
    base = open_base(memwal.Table(memwal.table.TableLocation(uri)).location)

    with pytest.raises(TableSetupError):
        commit_details(base, IndexDetails())


@pytest.mark.parametrize("name", ["conflict", "too concurrent to name"])
def test_the_address_of_a_table_decides_no_race(tmp_path: Path, name: str) -> None:
    """Lance names the file that is missing."""
    address = tmp_path / name / "table.lance"
    lance.write_dataset(rows({1: 1}), address)
    table = memwal.enable(address, primary_key="id", region_spec="unsharded")
    for path in (folder(table) / "data").iterdir():
        path.unlink()

    with pytest.raises(ObjectNotFoundError):
        commit_durably(table.base(), lambda dataset: dataset.create_scalar_index("n", "BTREE"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Commit conflict for version 7: concurrent commit at lake/t/_versions/7", True),
        ("conflict: Not found: lake/t/data/1.lance", True),
        ("409: <Error><Code>ConditionalRequestConflict</Code></Error>", True),
        ("Not found: lake/t/data/conflict.lance, /src/commit.rs:1:2", False),
        ("Dataset at path /concurrent/t.lance was not found", False),
    ],
)
def test_paths_in_an_error_decide_no_race(text: str, expected: bool) -> None:
    for uri in ("s3://bucket/lake/t", "s3://bucket/conflict"):
        assert is_conflict(OSError(text), TableLocation(uri)) == expected


def test_a_table_with_the_older_names_of_versions(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    lance.write_dataset(rows({1: 1}), uri, enable_v2_manifest_paths=False)
    table = memwal.enable(uri, region_spec="unsharded", primary_key=["id"])
    table.upsert(rows({2: 2}))
    base = table.base()

    version = commit_details(base, stamped(base, 7))

    assert (folder(table) / "_versions" / f"{version}.manifest").exists()
    table.merge()
    table.build_snapshot()
    assert state(table) == {1: 1, 2: 2}
    assert table.base().details.merged


class TestUpdate:
    def test_starts_over_on_what_landed_meanwhile(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        table.upsert(rows({1: 1}))
        seen: list[dict[UUID, int]] = []

        def change(base: BaseTable) -> IndexDetails:
            seen.append(dict(base.details.merged))
            if len(seen) == 1:
                table.merge()
            return stamped(base, 7)

        base = update_details(table.location, change)

        assert [len(progress) for progress in seen] == [0, 1]
        assert base.details.merged == seen[1]
        assert base.details.snapshot_ts_millis == 7
        assert base.version == table.base().version

    def test_no_change_commits_nothing(self, table: memwal.Table) -> None:
        version = table.base().version
        base = update_details(table.location, lambda base: base.details)
        assert base.version == version == table.base().version

    def test_gives_up_after_so_many_races(self, table: memwal.Table) -> None:
        def change(base: BaseTable) -> IndexDetails:
            commit_details(base, stamped(base, base.version))
            return stamped(base, 10**9)

        with pytest.raises(ConflictError, match="3"):
            update_details(table.location, change, attempts=3)


class TestDurably:
    """Commits that Lance rebases, of which each version is created by ours."""

    def test_over_several_others(self, table: memwal.Table) -> None:
        natively(table, {1: 1, 2: 2, 3: 3})
        base = table.base()
        natively(table, {1: 10})
        natively(table, {3: 30})
        table.base().dataset.delete("id = 2")
        asked: list[int] = []

        commit_durably(base, upsert({9: 9}), accept=lambda version: not asked.append(version))

        assert asked == [base.version + 3], "all of the others, at once"
        assert table.base().version == base.version + 4
        assert base_state(table) == {1: 10, 3: 30, 9: 9}
        assert leftovers(table) == []

    def test_that_is_not_accepted_changes_nothing(self, table: memwal.Table) -> None:
        base = table.base()
        natively(table, {2: 2})

        with pytest.raises(ConflictError):
            commit_durably(base, upsert({9: 9}), accept=lambda version: False)

        assert base_state(table) == {2: 2}
        assert leftovers(table) == []
        # Nothing came in between: there is nothing to accept.
        commit_durably(table.base(), upsert({9: 9}), accept=lambda version: False)
        assert base_state(table) == {2: 2, 9: 9}

    def test_is_accepted_anew_when_others_come_between_the_look_and_the_name(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        base = table.base()
        natively(table, {2: 2})
        asked: list[int] = []
        pause = store.pause("create", TABLE_MANIFEST)
        accept = lambda version: not asked.append(version)  # noqa: E731
        with pause.holding(commit_durably, base, upsert({9: 9}), accept=accept) as committing:
            natively(table, {3: 3})
            natively(table, {4: 4})
        committing.result()

        assert asked == [base.version + 1, base.version + 3]
        assert base_state(table) == {2: 2, 3: 3, 4: 4, 9: 9}
        assert leftovers(table) == []

    @pytest.mark.parametrize("kind", ["not there", "there", "our own"])
    def test_an_ambiguous_answer_is_settled(
        self, store: FaultyStore, table: memwal.Table, kind: str
    ) -> None:
        base = table.base()
        natively(table, {3: 3})
        if kind == "our own":
            store.claim_exists("create", TABLE_MANIFEST)
        else:
            store.fail("create", TABLE_MANIFEST, after=kind == "there")

        commit_durably(base, upsert({9: 9}))

        assert base_state(table) == {3: 3, 9: 9}
        assert table.base().version == base.version + 2
        assert leftovers(table) == []

    @pytest.mark.parametrize(
        ("action", "pattern"),
        [("get", STAGED), ("barrier", "*")],
    )
    def test_a_store_that_fails_before_the_name_leaves_nothing(
        self, store: FaultyStore, table: memwal.Table, action: str, pattern: str
    ) -> None:
        base = table.base()
        store.fail(action, pattern, times=100)

        with pytest.raises(StoreUnavailableError):
            commit_durably(base, upsert({9: 9}))

        store.clear()
        assert table.base().version == base.version
        assert leftovers(table) == []
        commit_durably(base, upsert({9: 9}))
        assert base_state(table) == {9: 9}

    def test_what_fails_behind_the_name_is_no_failure(
        self, store: FaultyStore, table: memwal.Table
    ) -> None:
        base = table.base()
        store.fail("delete", STAGED, times=100)

        commit_durably(base, upsert({9: 9}))

        assert base_state(table) == {9: 9}
        assert table.base().version == base.version + 1

    def test_keeps_the_names_that_versions_have(self, tmp_path: Path) -> None:
        path = tmp_path / "older"
        lance.write_dataset(rows({1: 1}), path, enable_v2_manifest_paths=False)
        table = memwal.enable(str(path), region_spec="unsharded", primary_key=["id"])
        commit_durably(table.base(), upsert({2: 2}))
        assert (path / f"_versions/{table.base().version}.manifest").exists()
        lance.dataset(path).migrate_manifest_paths_v2()

        commit_durably(table.base(), upsert({3: 3}))

        assert {len(file.stem) for file in (path / "_versions").glob("*.manifest")} == {20}
        assert base_state(table) == {1: 1, 2: 2, 3: 3}


def test_a_refusal_before_the_store_is_asked_is_named_as_such(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lance writes its record of a commit first, into a folder that may be read-only."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("LanceError(IO): Generic error: Permission denied (os error 13)")

    monkeypatch.setattr(lance.LanceDataset, "commit", staticmethod(refuse))
    with pytest.raises(StoreAccessError):
        table.build_snapshot()
