"""The load notices what it is there for: rows that are lost, come back, go back, or are torn."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from load import make_table  # noqa: E402
from load_test.check import final_checks  # noqa: E402
from load_test.reader import Reader  # noqa: E402
from load_test.rows import ABSENT, impossible, rows_of, torn  # noqa: E402
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
