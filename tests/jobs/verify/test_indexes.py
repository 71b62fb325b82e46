"""Indexes of the base table and of generations, spoiled in one way each."""

import os
import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from support.data.tables import state

import memwal
from memwal.errors import InvalidInputError
from memwal.jobs.options import VerifyOptions
from memwal.jobs.verify import repair
from memwal.jobs.verify.indexes import index_problems


def cut(files: list[Path], size: int | None) -> None:
    """Cut off files, or delete them."""
    assert files
    for path in files:
        if size is None:
            path.unlink()
        else:
            os.truncate(path, size)


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [0, 300, None])
def test_a_damaged_index_of_the_base_table(spoiled, size):
    before = state(spoiled.table)
    cut(list(spoiled.root.glob("_indices/*/page_data.lance")), size)

    finding = spoiled.only("index-damaged", quick=True)
    assert finding.object == "id_idx"

    actions = repair(spoiled.table.location, spoiled.verify(), dry_run=False)
    assert [action.state for action in actions] == ["done"]
    assert spoiled.codes(deep=True) == []
    assert state(memwal.open(spoiled.table.uri)) == before


def test_a_damaged_index_of_a_generation(spoiled):
    before = state(spoiled.table)
    cut(list(spoiled.generation(3).glob("_indices/*/*")), 0)

    finding = spoiled.only("generation-index-damaged", quick=True)
    assert spoiled.path(finding.object) == spoiled.generation(3)

    (action,) = repair(spoiled.table.location, spoiled.verify(), dry_run=False)
    assert action.state == "done"
    assert spoiled.codes(deep=True) == []
    assert state(memwal.open(spoiled.table.uri)) == before


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "ZONEMAP"])
def test_an_index_of_other_rows(tmp_path: Path, kind: str) -> None:
    # Both have files of the same lengths, of which nothing is wrong by itself.
    paths = {}
    for first in (1_000, 3_000):
        uri = str(tmp_path / str(first))
        data = pa.table({"n": [first + i % 100 for i in range(400)]})
        lance.write_dataset(data, uri).create_scalar_index("n", kind, name="n_idx")
        (paths[first],) = Path(uri).glob("_indices/*")
        assert list(index_problems(lance.dataset(uri))) == []
    for path in paths[3_000].iterdir():
        assert path.stat().st_size == (paths[1_000] / path.name).stat().st_size
        shutil.copy(path, paths[1_000] / path.name)

    assert [name for name, _ in index_problems(lance.dataset(str(tmp_path / "1000")))] == ["n_idx"]


def test_a_quick_check_reads_no_indexes() -> None:
    with pytest.raises(InvalidInputError):
        VerifyOptions(quick=True, deep=True)
