"""How fragments and keys are divided among the tasks that match them."""

import itertools

import pytest

from memwal.jobs.merge.match import MIN_TASK_ROWS, divide_match
from memwal.jobs.merge.run_files import KeyFile

MILLION = 1_000_000


def files(count: int, rows: int) -> list[KeyFile]:
    """Files with so many keys in all, of eight bytes."""
    each = rows // count
    return [KeyFile(f"{number}.arrow", number, each, 8 * each) for number in range(count)]


@pytest.mark.parametrize("max_tasks", [1, 2, 7, 64, 1_000])
@pytest.mark.parametrize("fragments", [1, 20, 900])
@pytest.mark.parametrize("keys", [10, 4 * MILLION, 400 * MILLION])
def test_every_fragment_meets_every_key_once(max_tasks: int, fragments: int, keys: int) -> None:
    sizes = dict.fromkeys(range(10, 10 + fragments), MILLION)
    stored = files(min(keys, 64), keys)

    groups, parts = divide_match(sizes, stored, max_tasks=max_tasks, key_bytes=16 * MILLION)

    assert sorted(itertools.chain(*groups)) == sorted(sizes)
    assert sorted(file.number for part in parts for file in part) == list(range(len(stored)))
    assert all(groups)
    assert all(parts)
    assert len(groups) * len(parts) <= max_tasks


def test_keys_are_divided_where_reading_them_takes_longest() -> None:
    sizes = dict.fromkeys(range(20), MILLION)

    def parts(keys: int, max_tasks: int) -> int:
        stored = files(64, keys)
        return len(divide_match(sizes, stored, max_tasks=max_tasks, key_bytes=1 << 30)[1])

    assert parts(4 * MILLION, 2) == 1
    assert parts(4 * MILLION, 64) == 3
    assert parts(400_000, 64) == 1
    assert parts(100 * MILLION, 64) > 3


def test_few_rows_have_one_task() -> None:
    sizes = {3: MIN_TASK_ROWS // 2, 5: MIN_TASK_ROWS // 4}

    groups, parts = divide_match(sizes, files(8, 800), max_tasks=64, key_bytes=1 << 30)

    assert groups == ((3, 5),)
    assert len(parts) == 1
