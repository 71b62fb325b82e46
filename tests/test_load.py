"""The load notices what it is there for: rows that are lost, come back, go back, or are torn."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from load import make_table  # noqa: E402
from load_test.check import differing_keys, final_checks  # noqa: E402
from load_test.producer import Producer  # noqa: E402
from load_test.reader import Reader  # noqa: E402
from load_test.rows import ABSENT, impossible, rows_of, seen, torn  # noqa: E402
from load_test.state import EventLog, Truth, mistakes  # noqa: E402

# bench/airflow.py must not be found as the package airflow by other tests of this process.
sys.path.remove(str(ROOT / "bench"))

KEYS = 600


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize("column", ["count", "vector", "text"])
def test_a_row_of_parts_of_two_is_torn(column: str) -> None:
    rows, other = (rows_of(np.arange(9), np.full(9, count), written=1.0) for count in (1, 2))
    at = rows.schema.get_field_index(column)
    mixed = pa.concat_arrays(
        [side[column].combine_chunks().slice(*part) for side, part in
         ((rows, (0, 4)), (other, (4, 1)), (rows, (5, 4)))]
    )  # fmt: skip

    assert torn(rows.set_column(at, rows.schema.field(at), mixed)).tolist() == [4]


@pytest.mark.parametrize(
    ("what", "found", "low", "high"),
    [
        ("a flushed row is lost", ABSENT, 4, 4),
        ("a flushed row is lost while it is written again", ABSENT, 4, 6),
        ("a deleted row came back", 2, 5, 5),
        ("a deleted row came back while it is written again", 2, 5, 6),
        ("an older row is read", 1, 4, 6),
        ("a row is read that nobody wrote", 4, 4, 6),
    ],
)
def test_what_a_read_must_not_find(what: str, found: int, low: int, high: int) -> None:
    assert impossible(array(found), array(low), array(high)).all(), what


@pytest.mark.parametrize(
    ("found", "low", "high"),
    [(2, 4, 4), (2, 4, 6), (3, 4, 6), (ABSENT, 5, 5), (ABSENT, 4, 7), (ABSENT, 5, 6), (3, 5, 6)],
)
def test_what_a_read_may_find(found: int, low: int, high: int) -> None:
    assert not impossible(array(found), array(low), array(high)).any()


def test_what_was_seen_bounds_the_next_read() -> None:
    low = seen(array(3, ABSENT, ABSENT), array(4, 4, 5))

    assert low.tolist() == [6, 7, 5]
    assert impossible(array(2, 2, 2), low, array(9, 9, 9)).all()


def test_what_a_search_leaves_out_is_not_gone() -> None:
    assert not impossible(array(ABSENT), array(4), array(4), absent_counts=False).any()
    assert seen(array(ABSENT), array(4), absent_counts=False).tolist() == [4]


def test_a_write_that_nobody_settled_may_be_there_or_not() -> None:
    acked, attempt = array(4, 4, 4, 5), array(6, 6, 6, 5)

    assert differing_keys(array(2, 3, 4, 2), acked, attempt).tolist() == [2, 3]


def test_the_last_checks_find_what_is_wrong(tmp_path: Path) -> None:
    table = make_table(tmp_path / "load.lance", KEYS, 2)
    truth = Truth(tmp_path / "truth", KEYS, create=True)
    assert all(check.held for check in final_checks(table, truth))
    truth.acked[7], truth.attempt[7] = 4, 4
    truth.acked[8], truth.attempt[8] = 3, 3
    lost, *others = final_checks(table, truth)

    assert not lost.held
    assert "2 of 600" in lost.found
    assert all(check.held for check in others)


def test_what_a_kill_left_open_is_settled(tmp_path: Path) -> None:
    table = make_table(tmp_path / "load.lance", KEYS, 2)
    truth = Truth(tmp_path / "truth", KEYS, create=True)
    random = np.random.default_rng(0)
    with EventLog(tmp_path, "producer-0") as event_log, table.writer() as writer:
        producer = Producer(
            keys=np.arange(KEYS),
            beacons=array(0),
            truth=truth,
            event_log=event_log,
            random=random,
            batch=40,
        )
        for _ in range(12):
            producer.write(writer)
        states = np.array(truth.acked)
        # One write that never was, and one that nobody was told of.
        never, untold = np.flatnonzero(states % 2 == 0)[-2:]
        truth.attempt[[never, untold]] = states[[never, untold]] + 2
        counts = array(states[untold] // 2 + 1)
        writer.upsert(rows_of(array(untold), counts, written=0.0))
        producer.settle(writer)
        assert mistakes(tmp_path) == []
        assert truth.acked[never] == truth.attempt[never] == states[never]
        assert truth.acked[untold] == truth.attempt[untold] == states[untold] + 2
        producer.flush(writer)
        assert (truth.floor == truth.acked).all()

        truth.acked[never] = truth.attempt[never] = states[never] + 2
        producer.settle(writer)
    assert [told["what"] for told in mistakes(tmp_path)] == ["after a claim"]


@pytest.mark.parametrize("kind", ["look_up", "read_range", "scan", "search_vector", "search_text"])
def test_a_reader_tells_of_what_is_lost(tmp_path: Path, kind: str) -> None:
    table = make_table(tmp_path / "load.lance", KEYS, 2)
    truth = Truth(tmp_path / "truth", KEYS, create=True)
    with EventLog(tmp_path, "reader-0") as event_log:
        random = np.random.default_rng(0)
        reader = Reader(table, beacons=array(0, 1), truth=truth, event_log=event_log, random=random)
        query = getattr(reader, kind)
        assert query() > 0
        assert mistakes(tmp_path) == []
        for states in (truth.floor, truth.acked, truth.attempt):
            states[:] = 4
        query()
    assert {told["what"] for told in mistakes(tmp_path)} == {"not what a read may find"}
