"""A region that is lost for good starts over, with numbers that the lost one cannot have."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from support.data.tables import (
    REGION,
    SCHEMA,
    MakeTable,
    age,
    folder,
    generations,
    keys,
    manifest,
    merged,
    region_folders,
    rows,
    state,
)
from support.faults.collecting import collect
from support.oracles import native
from support.stores.faulty_store import FaultyStores, Killed
from typer.testing import CliRunner

import memwal
from memwal.base_table.commit import update_details
from memwal.base_table.region_marks import RegionMark, read_mark
from memwal.cli.commands.app import app
from memwal.errors import CorruptDataError, InvalidInputError, RegionFencedError, RegionLostError
from memwal.format.paths import manifest_dir, manifest_key, region_dir, version_hint_key
from memwal.format.region_manifest import INCARNATION_NUMBERS

FIRST = INCARNATION_NUMBERS + 1


def lose(table: memwal.Table, to: Path) -> None:
    (folder(table) / region_dir(REGION)).rename(to)


@pytest.fixture
def table(make_table: MakeTable) -> memwal.Table:
    """A table with a merged generation, one that is not, and rows in the log."""
    table = make_table()
    table.upsert(rows(dict.fromkeys(range(10), 0)))
    table.merge()
    table.upsert(rows({1: 1}))
    writer = table.writer()
    writer.upsert(rows({2: 2}))
    writer.abort()
    return table


def test_a_region_starts_over(table: memwal.Table, tmp_path: Path) -> None:
    lose(table, tmp_path / "lost")
    with pytest.raises(RegionLostError):
        table.upsert(rows({3: 3}))

    planned = table.start_region_over(REGION)
    with pytest.raises(RegionLostError):
        table.scan().to_table()
    done = table.start_region_over(REGION, dry_run=False)

    assert planned.metrics == done.metrics == {"merged_generation": 1, "first_generation": FIRST}
    assert read_mark(table.location.store, REGION) == RegionMark(2, FIRST, 1)
    wanted = dict.fromkeys(range(10), 0)
    assert state(table) == wanted
    for number in range(2):
        with table.writer() as writer:
            writer.upsert(rows({3: number}))
            writer.delete(keys(4))
    del wanted[4]
    wanted |= {3: 1}
    assert generations(table) == [FIRST, FIRST + 1]
    assert state(table) == state(table.fresh()) == wanted
    assert table.verify().clean
    table.merge()
    table.build_indexes()
    table.build_snapshot()
    collect(table, 86400 * 30)
    collect(table, 86400 * 60)
    assert merged(table) == FIRST + 1
    assert generations(table) == []
    assert state(table) == wanted
    assert table.verify().clean
    with pytest.raises(InvalidInputError):
        table.start_region_over(REGION, dry_run=False)


def test_an_earlier_incarnation_that_comes_back_is_refused(
    table: memwal.Table, tmp_path: Path
) -> None:
    lose(table, tmp_path / "lost")
    table.start_region_over(REGION, dry_run=False)
    table.upsert(rows({3: 3}))
    lose(table, tmp_path / "later")
    shutil.copytree(tmp_path / "lost", folder(table) / region_dir(REGION))

    for call in (table.merge, table.status, lambda: table.upsert(rows({4: 4}))):
        with pytest.raises(CorruptDataError, match=str(FIRST)):
            call()
    with pytest.raises(CorruptDataError, match=str(FIRST)):
        memwal.open(table.uri).scan().to_table()
    assert str(FIRST) in "".join(collect(table, 86400 * 30).warnings)

    shutil.rmtree(folder(table) / region_dir(REGION))
    (tmp_path / "later").rename(folder(table) / region_dir(REGION))
    table.merge()
    assert state(table) == dict.fromkeys(range(10), 0) | {3: 3}


def test_an_earlier_incarnation_that_is_copied_beside_is_not_collected(
    table: memwal.Table, tmp_path: Path
) -> None:
    lost = region_folders(table)
    lose(table, tmp_path / "lost")
    table.start_region_over(REGION, dry_run=False)
    table.upsert(rows({3: 3}))
    shutil.copytree(tmp_path / "lost", folder(table) / region_dir(REGION), dirs_exist_ok=True)
    with pytest.raises(CorruptDataError, match=str(FIRST)):
        # The copy has replaced the hint.
        table.merge()
    (folder(table) / version_hint_key(REGION)).unlink()
    table.merge()
    age(table, 86400 * 90)
    for days in (30, 60):
        collect(table, 86400 * days)

    assert lost <= region_folders(table)
    entries = {path.name for path in (tmp_path / "lost" / "wal").iterdir()}
    assert entries <= {path.name for path in (folder(table) / region_dir(REGION) / "wal").iterdir()}
    assert state(table) == dict.fromkeys(range(10), 0) | {3: 3}


def test_a_second_loss_takes_the_next_numbers(table: memwal.Table, tmp_path: Path) -> None:
    for number in range(1, 3):
        lose(table, tmp_path / f"lost-{number}")
        table.start_region_over(REGION, dry_run=False)
        table.upsert(rows({3: number}))
        table.merge()
        assert merged(table) == number * INCARNATION_NUMBERS + 1
    assert state(table) == dict.fromkeys(range(10), 0) | {3: 2}


@pytest.mark.few(2)
@pytest.mark.parametrize("step", range(4))
def test_that_dies_at_any_step_is_repeated(
    table: memwal.Table, tmp_path: Path, quick_faults: FaultyStores, step: int
) -> None:
    lose(table, tmp_path / "lost")
    store = quick_faults.of(table.location)
    rule = store.kill("create", skip=step)
    with suppress(Killed):
        table.start_region_over(REGION, dry_run=False)
    assert rule.hits == 1
    if step == 3:
        # Only the hint was not written.
        with pytest.raises(InvalidInputError):
            table.start_region_over(REGION, dry_run=False)
    else:
        table.start_region_over(REGION, dry_run=False)
    table.upsert(rows({3: 3}))
    table.merge()
    assert state(table) == dict.fromkeys(range(10), 0) | {3: 3}


def test_a_lost_manifest_and_an_older_one(table: memwal.Table) -> None:
    """What is left in the folder stays there, and nothing reads it."""
    (folder(table) / manifest_key(REGION, manifest(table).version)).unlink()
    table.start_region_over(REGION, dry_run=False)

    table.upsert(rows({3: 3}))
    table.merge()
    assert state(table) == dict.fromkeys(range(10), 0) | {3: 3}


def test_writers_of_the_lost_incarnation_are_fenced(make_table: MakeTable, tmp_path: Path) -> None:
    table = make_table()
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        writer.flush()
        lose(table, tmp_path / "lost")
        table.start_region_over(REGION, dry_run=False)
        with pytest.raises(RegionFencedError):
            writer.upsert(rows({2: 2}))
        writer.abort()


def test_regions_of_a_column_keep_their_values(tmp_path: Path) -> None:
    table = memwal.create(tmp_path / "t", SCHEMA, primary_key="id", region_spec="identity:id")
    table.upsert(rows({1: 1, 2: 2}))
    table.merge()
    region = table.region_ids()[0]
    before = manifest(table, region)
    shutil.rmtree(folder(table) / region_dir(region))

    table.start_region_over(region, dry_run=False)

    after = manifest(table, region)
    assert (after.spec_id, after.region_fields) == (before.spec_id, before.region_fields)
    table.upsert(rows({1: 10, 2: 20}))
    assert state(table) == {1: 10, 2: 20}


def test_clients_of_lance_go_on(table: memwal.Table, tmp_path: Path) -> None:
    lose(table, tmp_path / "lost")
    table.start_region_over(REGION, dry_run=False)
    shard = native.writer(table)
    native.put(shard, table, rows({3: 3}))
    shard.close()
    assert state(table.fresh()) == dict.fromkeys(range(10), 0) | {3: 3}
    table.upsert(rows({4: 4}))
    assert state(native.scan(table)) == state(table)


def test_a_log_that_is_all_that_is_left(table: memwal.Table) -> None:
    shutil.rmtree(folder(table) / "_memwal_regions")
    table.merge()
    update_details(table.location, lambda base: replace(base.details, merged={}))
    shutil.rmtree(folder(table) / "_memwal_regions")
    shutil.rmtree(folder(table) / manifest_dir(REGION))
    with pytest.raises(CorruptDataError):
        table.upsert(rows({3: 3}))
    table.start_region_over(REGION, dry_run=False)
    table.upsert(rows({3: 3}))
    assert state(table)[3] == 3


def test_a_region_that_is_not_lost(table: memwal.Table) -> None:
    for region in (REGION, UUID(int=7)):
        with pytest.raises(InvalidInputError):
            table.start_region_over(region, dry_run=False)


def test_the_command(table: memwal.Table, tmp_path: Path) -> None:
    lose(table, tmp_path / "lost")
    run = CliRunner()
    command = ["recover", table.uri, "--region-lost", REGION.hex[:4], "--json"]

    assert json.loads(run.invoke(app, command).stdout)["metrics"]["first_generation"] == FIRST
    with pytest.raises(RegionLostError):
        table.status()
    assert run.invoke(app, [*command, "--yes"]).exit_code == 0
    assert table.status().regions[0].current_generation == FIRST
    assert isinstance(table.scan().to_table(), pa.Table)
