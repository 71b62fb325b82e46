"""Symbolic links in a table: read, written and copied through, reported, never collected."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.data.tables import REGION, age, folder, listing, numbered, rows, state

import memwal
from memwal.errors import CorruptDataError, MemWalError
from memwal.jobs.gc.decision import CollectionResult, GarbageKind, Reason

MakeTable = Callable[..., memwal.Table]
DAY = 24 * 3600


def collect(table: memwal.Table, *, dry_run: bool = False) -> CollectionResult:
    return table.collect_garbage(
        dry_run=dry_run,
        explain=True,
        grace_seconds=0,
        retention_seconds=0,
        orphan_grace_seconds=0,
        index_grace_seconds=0,
        version_retention_seconds=0,
    )


def grow(table: memwal.Table) -> None:
    """Merged and unmerged generations, a log, and a version that is replaced."""
    with table.writer() as writer:
        for number in range(3):
            writer.upsert(numbered(10 * number, 10))
            writer.flush()
            if number < 2:
                table.merge()
        writer.upsert(numbered(30, 10))
    age(table, 10 * DAY, pattern="**/*")


def put_behind_a_link(path: Path, disk: Path) -> Path:
    """Move a folder to another disk, and put a link in its place."""
    target = disk / path.name
    disk.mkdir(exist_ok=True)
    shutil.move(path, target)
    path.symlink_to(target)
    return target


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "part", ["_mem_wal", f"_mem_wal/{REGION}", f"_mem_wal/{REGION}/manifest", "_indices", "data"]
)
def test_another_table_loses_nothing_through_a_link(make_table: MakeTable, part: str) -> None:
    table, victim = (
        make_table(maintained_indexes=["id_idx"]),
        make_table(maintained_indexes=["id_idx"]),
    )
    for one in (table, victim):
        grow(one)
        one.build_indexes()
        age(one, 10 * DAY, pattern="**/*")
    shutil.rmtree(folder(table) / part)
    (folder(table) / part).symlink_to(folder(victim) / part)
    before, rows_before = listing(folder(victim)), state(victim)

    for _ in range(3):
        try:
            result = collect(table)
        except MemWalError:
            # What the table needs cannot be read behind the link: nothing is collected.
            continue
        assert str(folder(table) / part) in "".join(result.warnings)

    after = listing(folder(victim))
    assert before.items() <= after.items()
    assert state(victim) == rows_before


@pytest.mark.few(1)
@pytest.mark.parametrize("part", ["region", "generation", "wal", "manifest"])
def test_a_table_with_a_link_to_another_disk_is_whole(
    make_table: MakeTable, tmp_path: Path, part: str
) -> None:
    table = make_table(buckets=2)
    with table.writer() as writer:
        for number in range(2):
            writer.upsert(numbered(10 * number, 10))
            writer.flush()
    regions = sorted((folder(table) / "_mem_wal").iterdir())
    path = {
        "region": regions[0],
        "generation": next(regions[0].glob("*_gen_*")),
        "wal": regions[0] / "wal",
        "manifest": regions[0] / "manifest",
    }[part]
    disk = put_behind_a_link(path, tmp_path / "disk")
    expected = dict.fromkeys(range(20), 0)

    # The caches of this process know nothing of it.
    table = memwal.open(table.uri)
    assert state(table) == expected
    table.upsert(numbered(20, 10))
    expected |= dict.fromkeys(range(20, 30), 0)
    assert state(table) == expected
    table.copy_to(str(tmp_path / "copy"))
    copied = memwal.open(str(tmp_path / "copy"))
    assert state(copied) == expected
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.is_symlink()]
    (finding,) = table.verify().findings
    assert (finding.code, finding.object) == ("link", str(path.relative_to(folder(table))))

    table.merge()
    before = listing(disk)
    for dry_run in (True, False, True, False):
        result = collect(table, dry_run=dry_run)
        skipped = [one for one in result.decisions if one.reason is Reason.LINK]
    assert before.items() <= listing(disk).items()
    assert skipped
    assert len(result.warnings) == 1
    assert str(path) in result.warnings[0]
    # The other region was collected.
    assert not list(regions[1].glob("*_gen_*"))
    assert state(table) == expected
    assert state(memwal.open(table.uri)) == expected


@pytest.mark.parametrize("target", ["loop", "absent", "."])
def test_a_region_behind_a_broken_link_is_never_absent(
    make_table: MakeTable, tmp_path: Path, target: str
) -> None:
    table = make_table(buckets=2)
    table.upsert(numbered(0, 20))
    region = sorted((folder(table) / "_mem_wal").iterdir())[0]
    region.rename(tmp_path / "unmounted")
    region.symlink_to(region.name if target == "loop" else target)

    table = memwal.open(table.uri)
    for act in (
        lambda: table.scan().to_table(),
        lambda: table.copy_to(str(tmp_path / "copy")),
        table.status,
    ):
        with pytest.raises(CorruptDataError) as error:
            act()
        assert str(region) in str(error.value)
    with table.writer() as writer, pytest.raises(MemWalError):
        writer.upsert(numbered(0, 20, 1))
    collect(table)
    assert "link-broken" in {finding.code for finding in table.verify().findings}

    region.unlink()
    (tmp_path / "unmounted").rename(region)
    assert state(memwal.open(table.uri)).keys() == set(range(20))


def test_old_versions_are_not_cleaned_up_behind_a_link(table: memwal.Table, tmp_path: Path) -> None:
    grow(table)
    disk = put_behind_a_link(folder(table) / "data", tmp_path / "disk")
    before = listing(disk)

    result = collect(table)

    assert listing(disk) == before
    (decision,) = [one for one in result.decisions if one.kind is GarbageKind.BASE_VERSIONS]
    assert decision.reason is Reason.LINK


def test_a_table_that_is_a_link_is_collected(table: memwal.Table, tmp_path: Path) -> None:
    grow(table)
    (tmp_path / "link").symlink_to(folder(table))
    linked = memwal.open(str(tmp_path / "link"))

    collect(linked)
    result = collect(linked)

    assert result.warnings == ()
    assert result.metrics["folders"]
    linked.upsert(rows({0: 5}))
    assert state(linked)[0] == 5
