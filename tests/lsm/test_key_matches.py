"""Finding rows whose key is among many keys."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.lsm.key_matches import KeyMarks, keys_among, match_keys, newest_row_positions

COUNT = 5_000


def values_of(numbers: np.ndarray, kind: str) -> pa.Array:
    """Distinct keys for distinct numbers, with their differences in other places."""
    match kind:
        case "int64" | "uint64" | "int32":
            return pa.array(numbers).cast(kind)
        case "ends":
            return pa.array([f"{number:032x}" for number in numbers])
        case "middle":
            return pa.array([f"customer/{number:08d}/default" for number in numbers])
        case "short":
            return pa.array([f"{number:x}" for number in numbers])
        case "binary":
            return pa.array([int(number).to_bytes(5, "little") for number in numbers])
        case _:
            return pa.array([f"{number}" * 3 for number in numbers], pa.large_string())


@pytest.mark.parametrize(
    "kind", ["int64", "uint64", "int32", "ends", "middle", "short", "binary", "large"]
)
@pytest.mark.parametrize("keys", [1, COUNT])
def test_finds_each_row_with_one_of_the_keys(kind: str, keys: int) -> None:
    random = np.random.default_rng(1)
    numbers = random.permutation(4 * COUNT)[:keys]
    asked = values_of(numbers, kind)
    rows = random.integers(0, 4 * COUNT, 3 * COUNT)
    # Slices, whose buffers begin elsewhere.
    stored = values_of(rows, kind)
    pieces = [
        (stored.slice(at, 1_000), np.arange(at, at + 1_000)) for at in range(0, 15_000, 1_000)
    ]
    ids, positions = match_keys(asked, [(v, i.astype(np.uint64)) for v, i in pieces])
    assert ids.tolist() == np.flatnonzero(np.isin(rows, numbers)).tolist()
    assert numbers[positions].tolist() == rows[ids.astype(np.int64)].tolist()


@pytest.mark.parametrize("kind", ["int64", "uint64", "int32", "far", "ends", "middle", "large"])
def test_finds_the_newest_row_of_each_of_many_keys(kind: str) -> None:
    numbers = np.random.default_rng(3).integers(0, COUNT, 2 * COUNT)
    keys = values_of(numbers * (1 << 40), "int64") if kind == "far" else values_of(numbers, kind)
    last = {number: row for row, number in enumerate(numbers[7:].tolist())}
    assert newest_row_positions(keys.slice(7)).tolist() == sorted(last.values())


@pytest.mark.parametrize("kind", ["int64", "ends", "middle"])
def test_finds_few_rows_among_many_keys(kind: str) -> None:
    numbers = np.random.default_rng(2).permutation(10 * COUNT)
    asked = np.array([7, 10 * COUNT, 3, 10 * COUNT + 1])
    ids, positions = match_keys(
        values_of(numbers, kind), [(values_of(asked, kind), np.arange(4, dtype=np.uint64))]
    )
    assert ids.tolist() == [0, 2]
    assert numbers[positions].tolist() == [7, 3]


def test_a_null_matches_no_key() -> None:
    keys = pa.array(np.arange(COUNT))
    rows = pa.array([None, 0, COUNT, None, 7])
    ids, positions = match_keys(keys, [(rows, np.arange(5, dtype=np.uint64))])
    assert (ids.tolist(), positions.tolist()) == ([1, 4], [0, 7])


def test_of_nothing_is_nothing() -> None:
    keys = pa.array(np.arange(COUNT))
    for asked, pieces in ((keys, []), (keys[:0], [(keys, np.arange(COUNT, dtype=np.uint64))])):
        ids, positions = match_keys(asked, pieces)
        assert (len(ids), len(positions)) == (0, 0)


@settings(deadline=None)
@given(st.sets(st.binary(max_size=20)), st.lists(st.binary(max_size=20)))
def test_any_bytes(some: set[bytes], others: list[bytes]) -> None:
    keys = sorted(some | {int(n).to_bytes(3, "big") for n in range(COUNT)})
    rows = [*others, *keys[::2]]
    ids, positions = match_keys(
        pa.array(keys), [(pa.array(rows, pa.binary()), np.arange(len(rows), dtype=np.uint64))]
    )
    wanted = set(keys)
    assert ids.tolist() == [number for number, row in enumerate(rows) if row in wanted]
    assert [keys[p] for p in positions.tolist()] == [rows[i] for i in ids.tolist()]


@pytest.mark.parametrize("kind", ["int64", "ends", "middle"])
def test_most_other_rows_are_ruled_out(kind: str) -> None:
    """Keys that differ in the middle are told apart as well."""
    marks = KeyMarks.of(values_of(np.arange(COUNT), kind))
    rows = values_of(np.arange(COUNT, 11 * COUNT), kind)
    assert len(marks.possible(rows)) < len(rows) // 10


def test_keys_with_the_same_ends() -> None:
    """Half of them have the hash of another one."""
    numbers = np.arange(COUNT)
    keys = pa.array(
        [f"customer{number // 2:08d}{number % 2}the same" for number in numbers]
        + [f"customer{'x' * 9}{number:08d}" for number in numbers]
    )
    rows = keys.take(pa.array(numbers[::-1]))
    ids, positions = match_keys(keys, [(rows, numbers.astype(np.uint64))])
    assert ids.tolist() == numbers.tolist()
    assert positions.tolist() == numbers[::-1].tolist()


def test_integers_whose_hashes_lie_close_together() -> None:
    """The factor has the inverse of that by which the hashes are made, modulo 2**64."""
    factor = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    numbers = (np.arange(COUNT, dtype=np.uint64) * np.uint64(factor)).view(np.int64)
    rows = pa.array(numbers[::-1])
    ids, positions = match_keys(pa.array(numbers), [(rows, np.arange(COUNT, dtype=np.uint64))])
    assert ids.tolist() == list(range(COUNT))
    assert positions.tolist() == list(range(COUNT))[::-1]


@pytest.mark.parametrize("kind", ["int64", "ends", "middle"])
@pytest.mark.parametrize("count", [1, COUNT])
def test_tells_which_keys_come_again(kind: str, count: int) -> None:
    random = np.random.default_rng(3)
    numbers = random.permutation(4 * COUNT)[:count]
    rows = random.integers(0, 4 * COUNT, 3 * COUNT)
    pieces = [values_of(rows[at : at + 1_000], kind) for at in range(0, 15_000, 1_000)]
    found = keys_among(values_of(numbers, kind), pieces)
    assert found.tolist() == np.isin(numbers, rows).tolist()
