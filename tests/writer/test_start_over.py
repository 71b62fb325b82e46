"""Writers that give up what is in the log."""

import pytest
from support.data.tables import REGION, MakeTable, log, rows, state

import memwal
from memwal import WriterOptions
from memwal.errors import CorruptDataError
from memwal.format.paths import wal_key
from memwal.lsm.wal.abandon import read_abandoned


def test_rows_that_were_not_flushed_are_given_up_and_that_is_recorded(
    table: memwal.Table,
) -> None:
    with table.writer() as first:
        first.upsert(rows({1: 1}))
        first.flush()
        first.upsert(rows({1: 2, 2: 2}))
        first.upsert(rows({3: 3}))
        first.abort()
    with table.writer(replay=False) as second:
        second.upsert(rows({4: 4}))
        assert state(second) == {1: 1, 4: 4}
    assert state(table) == {1: 1, 4: 4}
    (record,) = read_abandoned(table.location.store, REGION)
    assert (record.entries, record.rows) == (2, 3)
    table.merge()
    assert state(table) == {1: 1, 4: 4}
    with table.writer() as third:
        third.claim()
        assert state(third) == {1: 1, 4: 4}


def test_only_the_first_claim_of_a_region_gives_up_rows(table: memwal.Table) -> None:
    """A later one would give up what somebody else was told is safe, or this writer itself."""
    options = WriterOptions(release_idle_after=0.02)
    with table.writer(options=options, replay=False) as writer:
        writer.upsert(rows({1: 1}))
        while writer.stats().regions:
            pass
        with table.writer() as other:
            other.upsert(rows({2: 2}))
            other.abort()
        writer.upsert(rows({3: 3}))
        assert state(writer) == {1: 1, 2: 2, 3: 3}


def test_a_damaged_log_can_be_left_behind(table: memwal.Table, make_table: MakeTable) -> None:
    with table.writer() as first:
        for n in range(3):
            first.upsert(rows({n: n}))
        first.abort()
    lost = sorted(log(table))[1]
    table.location.store.delete(wal_key(REGION, lost))
    with pytest.raises(CorruptDataError, match=str(lost)), table.writer() as writer:
        writer.claim()
    with table.writer(replay=False) as writer:
        writer.upsert(rows({7: 7}))
    assert state(table) == {7: 7}
