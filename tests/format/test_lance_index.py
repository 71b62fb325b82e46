"""What stands inside the files of Lance's vector indexes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileReader

from memwal.errors import CorruptDataError
from memwal.format.lance_files import read_centroids, read_codebook


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_model_that_an_index_was_built_with(tmp_path: Path, dtype: type[np.floating[Any]]) -> None:
    random = np.random.default_rng(1)
    points, centroids = random.random((300, 8)).astype(dtype), random.random((3, 8)).astype(dtype)
    codebook = random.random((2, 256, 4)).astype(dtype)
    column = pa.FixedSizeListArray.from_arrays(pa.array(points.ravel()), 8)
    dataset = lance.write_dataset(pa.table({"v": column}), str(tmp_path / "data"))
    dataset.create_index(
        "v",
        "IVF_PQ",
        num_partitions=3,
        num_sub_vectors=2,
        ivf_centroids=centroids,
        pq_codebook=codebook,
    )
    (folder,) = (tmp_path / "data" / "_indices").iterdir()

    index, auxiliary = (LanceFileReader(folder / f"{n}.idx") for n in ("index", "auxiliary"))

    position = int(index.metadata().schema.metadata[b"lance:ivf"])
    found = read_centroids(index.read_global_buffer(position), name="it")
    assert found.dtype == dtype
    assert np.array_equal(found, centroids)
    numbers = read_codebook(auxiliary.read_global_buffer(2), name="it")
    assert np.array_equal(numbers.reshape(2, 256, 4), codebook)


@pytest.mark.parametrize("read", [read_centroids, read_codebook])
@pytest.mark.parametrize("data", [b"", b"\xff", b"\x08\x63", b"\x22\x04\x08\x02\x1a\x00"])
def test_other_bytes_are_refused(read: Callable[..., Any], data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="the thing"):
        read(data, name="the thing")


def test_centroids_have_the_shape_that_is_told() -> None:
    """Three floats are no two centroids of two numbers."""
    numbers = np.ones(3, np.float32).tobytes()
    tensor = b"\x08\x02\x12\x02\x02\x02\x1a\x0c" + numbers
    with pytest.raises(CorruptDataError):
        read_centroids(b"\x22" + bytes([len(tensor)]) + tensor, name="it")
