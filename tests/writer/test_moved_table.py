"""A table that is moved, or replaced by a backup, under an open writer."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.data.tables import MakeTable, folder, listing, rows, state
from support.stores.faulty_store import REGION_MANIFEST, WAL, FaultyStores

import memwal
from memwal.errors import MemWalError, RegionFencedError, TableReplacedError
from memwal.writer.region_writer.options import WriterOptions

Write = Callable[["memwal.Writer"], None]

WRITES: dict[str, Write] = {
    "upsert": lambda writer: writer.upsert(rows({2: 2})),
    "flush": lambda writer: writer.flush(),
}


def move(table: memwal.Table) -> Path:
    path = folder(table)
    return Path(shutil.move(path, path.with_name("elsewhere")))


def everything(path: Path) -> dict[int, int | None]:
    """What a writer sees that claims a table."""
    with memwal.open(str(path)).writer() as writer:
        writer.claim()
        return state(writer)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("fsync", [True, False])
def test_a_table_that_was_moved_takes_no_more_rows(
    table: memwal.Table, write: str, fsync: bool
) -> None:
    writer = table.writer(options=WriterOptions(fsync=fsync))
    writer.upsert(rows({1: 1}))
    elsewhere = move(table)

    # An application that opens a new writer after this one was fenced does the right thing too.
    with pytest.raises(RegionFencedError) as error:
        WRITES[write](writer)
    assert type(error.value) is TableReplacedError
    with pytest.raises(MemWalError):
        writer.upsert(rows({3: 3}))
    with pytest.raises(MemWalError):
        writer.close()

    # A backup that is moved to the address must not find a folder there.
    assert not folder(table).exists()
    assert everything(elsewhere) == {1: 1}


@pytest.mark.parametrize("write", WRITES)
def test_a_backup_in_the_place_of_a_table_is_left_alone(table: memwal.Table, write: str) -> None:
    writer = table.writer()
    writer.upsert(rows({1: 1}))
    backup = shutil.copytree(folder(table), folder(table).with_name("backup"))
    writer.upsert(rows({1: 5}))
    elsewhere = move(table)
    shutil.copytree(backup, folder(table))
    before = listing(folder(table))

    with pytest.raises(TableReplacedError):
        WRITES[write](writer)
    with pytest.raises(MemWalError):
        writer.close()

    assert listing(folder(table)) == before
    assert everything(folder(table)) == {1: 1}
    assert everything(elsewhere) == {1: 5}


@pytest.mark.parametrize(("write", "key"), [("upsert", WAL), ("flush", REGION_MANIFEST)])
def test_a_table_that_is_moved_during_a_write_has_what_was_acknowledged(
    faults: FaultyStores, table: memwal.Table, write: str, key: str
) -> None:
    writer = table.writer()
    writer.upsert(rows({1: 1}))
    store = faults.of(table.location)
    store.act("create", lambda: shutil.copytree(move(table), folder(table)), key=key)

    with pytest.raises(TableReplacedError):
        WRITES[write](writer)
    writer.abort()

    assert everything(folder(table)) == {1: 1}


def test_a_writer_makes_no_table_for_its_next_region(
    make_table: MakeTable,
) -> None:
    table = make_table(buckets=8)
    writer = table.writer()
    writer.upsert(rows({1: 1}))
    move(table)

    with pytest.raises(MemWalError):
        writer.upsert(rows(dict.fromkeys(range(100))))
    writer.abort()

    assert not folder(table).exists()
