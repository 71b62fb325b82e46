import numpy as np
import pytest

from memwal.util.arrays import distinct


@pytest.mark.parametrize("dtype", [np.uint64, np.int32, np.uint8, np.int64])
@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_distinct_values_are_ascending(dtype: type[np.generic], count: int) -> None:
    values = np.random.default_rng(count).integers(0, 100, count).astype(dtype)
    given = values.copy()
    found = distinct(values)
    assert found.dtype == dtype
    assert found.tolist() == sorted(set(values.tolist()))
    assert np.array_equal(values, given)
