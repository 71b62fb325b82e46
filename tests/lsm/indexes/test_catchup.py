"""Names of the indexes that writers maintain, and of those that only index builds extend."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import memwal
from memwal.lsm.indexes.catchup import maintained_index_names, unmaintained_index_names

ROWS = pa.table({"id": [1, 2, 3], "n": [1, 2, 3], "m": [1, 2, 3]})


@pytest.mark.parametrize(
    ("given", "maintained", "others"),
    [
        (None, ("id_idx", "n_idx"), ["m_idx"]),
        (["n_idx"], ("n_idx",), ["id_idx", "m_idx"]),
    ],
)
def test_maintained_indexes(
    tmp_path: Path, given: list[str] | None, maintained: tuple[str, ...], others: list[str]
) -> None:
    """Lance's own writer maintains no bitmap; the index of MemWAL itself is none of them."""
    dataset = lance.write_dataset(ROWS, tmp_path / "t")
    for column, kind in (("n", "BTREE"), ("m", "BITMAP"), ("id", "BTREE")):
        dataset.create_scalar_index(column, kind, name=f"{column}_idx")
    base = memwal.enable(
        tmp_path / "t", primary_key="id", region_spec="unsharded", maintained_indexes=given
    ).base()
    assert maintained_index_names(base) == maintained
    assert [*unmaintained_index_names(base)] == others
