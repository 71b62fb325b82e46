"""Which generations somebody may still read."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import lance
import pyarrow as pa
import pytest
from support.data.tables import REGION, MakeTable, folder, region_folders, rows
from support.faults.collecting import DAY, collect

import memwal
from memwal.base_table.named_files import forget_decoded
from memwal.format.paths import table_manifest_keys
from memwal.jobs.gc.history import StoredVersions
from memwal.jobs.gc.pins import read_pins
from memwal.jobs.options import GcOptions

AGES_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def now() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=1)


def removable(table: memwal.Table, cutoff: datetime) -> dict[UUID, int]:
    options = GcOptions(grace_seconds=0, retention_seconds=0)
    pins = read_pins(table.location, options, now=cutoff)
    return {region: pins.removable(region) for region in table.region_ids()}


@pytest.fixture
def history(table: memwal.Table) -> memwal.Table:
    """Three generations, each merged by a commit of its own."""
    with table.writer() as writer:
        for key in range(3):
            writer.upsert(rows({key: key}))
            writer.flush()
    table.merge(commit_bytes=1)
    return table


def test_nothing_while_every_version_counts(history: memwal.Table) -> None:
    """The first version is older than MemWAL on this table, and stands for all after it."""
    assert removable(history, AGES_AGO).get(REGION, 0) == 0


def test_what_the_version_at_the_cutoff_has_merged(history: memwal.Table) -> None:
    stored = StoredVersions.list(history.location).manifests
    dated = {version: info.modified for version, info in stored.items()}
    for version, moment in dated.items():
        merged_then = lance.dataset(history.uri, version=version).count_rows()
        assert removable(history, moment).get(REGION, 0) == merged_then
        assert removable(history, moment + timedelta(microseconds=1)).get(REGION, 0) == merged_then


def test_regions_are_judged_one_by_one(make_table: MakeTable) -> None:
    table = make_table(buckets=2)
    table.upsert(rows(dict.fromkeys(range(20), 0)))
    first, second = table.region_ids()
    table.merge(regions=[first])
    table.base().dataset.tags.create("kept", table.base().version)
    table.merge()

    assert removable(table, now()) == {first: 1, second: 0}


def version_with(table: memwal.Table, rows: int) -> int:
    """The oldest version with so many rows in the base table."""
    return next(
        version
        for version in range(1, table.base().version + 1)
        if lance.dataset(table.uri, version=version).count_rows() == rows
    )


def spoil(table: memwal.Table, version: int, *, damaged: bool) -> None:
    key = table_manifest_keys(version)[0]
    if damaged:
        table.location.store.put(key, b"nonsense")
    else:
        table.location.store.delete(key)


@pytest.mark.parametrize("damaged", [False, True])
def test_the_version_before_stands_for_one_that_cannot_be_read(
    history: memwal.Table, damaged: bool
) -> None:
    lost = version_with(history, 2)
    dataset = history.base().dataset
    dataset.tags.create("kept", lost)
    assert removable(history, now()) == {REGION: 2}
    spoil(history, lost, damaged=damaged)

    assert removable(history, now()) == {REGION: 1}


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_the_version_after_stands_for_a_tagged_one_but_not_for_that_of_a_branch(
    history: memwal.Table, kind: str
) -> None:
    lost = version_with(history, 1)
    if kind == "tag":
        history.base().dataset.tags.create("kept", lost)
    else:
        lance.dataset(history.uri, version=lost).create_branch("side")
    for version in range(1, lost + 1):
        spoil(history, version, damaged=False)

    assert removable(history, now()) == {REGION: 2 if kind == "tag" else 0}


def test_a_damaged_tag_may_be_of_any_version(history: memwal.Table) -> None:
    assert removable(history, now()) == {REGION: 3}
    history.location.store.put("_refs/tags/torn.json", b'{"branch": null, "ver')

    assert removable(history, now()) == {REGION: 0}
    for version in range(1, version_with(history, 2)):
        spoil(history, version, damaged=False)
    assert removable(history, now()) == {REGION: 2}


@pytest.mark.parametrize("kind", ["lost version", "damaged tag"])
def test_the_tag_is_named_and_the_rest_is_collected(history: memwal.Table, kind: str) -> None:
    dataset = history.base().dataset
    dataset.tags.create("kept", version_with(history, 2))
    dataset.tags.create("fine", history.base().version)
    if kind == "lost version":
        spoil(history, version_with(history, 2), damaged=False)
    else:
        history.location.store.put("_refs/tags/kept.json", b"torn")
        for version in range(1, version_with(history, 2)):
            spoil(history, version, damaged=False)
    code = "tag-version-missing" if kind == "lost version" else "tag-damaged"
    left = {"lost version": {2, 3}, "damaged tag": {3}}[kind]

    for problems in (
        [finding.text for finding in history.verify().findings if finding.code == code],
        history.status().lost_refs,
        collect(history, DAY, version_retention_seconds=0).warnings,
    ):
        (problem,) = problems
        assert "tag kept" in problem
        assert "tags.delete('kept')" in problem
    collect(history, 2 * DAY)
    assert {int(name.rpartition("_")[2]) for name in region_folders(history)} == left

    history.base().dataset.tags.delete("kept")
    assert collect(history, 3 * DAY, version_retention_seconds=0).warnings == ()
    collect(history, 4 * DAY)
    assert region_folders(history) == set()
    assert history.status().lost_refs == ()
    assert [f.code for f in history.verify().findings if f.code.startswith("tag")] == []


def test_rows_that_cannot_be_decoded_pin_everything(make_table: MakeTable) -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("kind", kind)])
    table = make_table(schema)
    table.upsert({"id": range(100), "kind": [f"kind {n}" for n in range(100)]})
    table.merge()
    assert removable(table, now()) == {REGION: 1}
    file = max((folder(table) / "data").iterdir(), key=lambda path: path.stat().st_size)
    data = file.read_bytes()
    file.write_bytes(b"\xff" * 900 + data[900:])
    forget_decoded()
    assert removable(table, now()) == {REGION: 0}
    result = collect(table, DAY)
    assert result.metrics["generations_dropped"] == 0
    assert any(file.name in warning for warning in result.warnings)
    file.write_bytes(data)
    assert collect(table, DAY).metrics["generations_dropped"] == 1
