"""Every file that Lance stores for a version is named, copied and checked."""

import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.blob import Blob, blob_array, blob_field
from lance.dataset import DatasetBasePath
from support.data.future import OVERLAYS, add_overlay, add_version, set_unknown_field

import memwal
from memwal.base_table.named_files import stored_objects
from memwal.errors import NewerFormatError
from memwal.format.lance_manifest import external_files, named_files


def _columns(rows: int) -> pa.Table:
    words = [f"word{n % 7}" for n in range(rows)]
    numbers = np.random.default_rng(0).random(rows * 8, np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(numbers), 8)
    return pa.table({"id": range(rows), "text": words, "tags": [words[:2]] * rows, "vec": vectors})


def _with_indexes(path: Path, *, stable_row_ids: bool) -> None:
    dataset = lance.write_dataset(_columns(300), path, enable_stable_row_ids=stable_row_ids)
    scalar = {"BTREE": "id", "BLOOMFILTER": "id", "ZONEMAP": "id", "BITMAP": "text"}
    for kind, column in (
        scalar | {"INVERTED": "text", "NGRAM": "text", "LABEL_LIST": "tags"}
    ).items():
        dataset.create_scalar_index(column, kind, name=kind)
    for kind in ("IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ"):
        dataset.create_index(
            "vec",
            kind,
            name=kind,
            num_partitions=1,
            num_sub_vectors=2 if kind == "IVF_PQ" else None,
        )
    dataset.insert(_columns(20))
    dataset.optimize.optimize_indices()
    dataset.insert(_columns(20))
    dataset.delete("id = 3")
    if not stable_row_ids:
        # Keeps a map of the moved rows in an index of its own.
        dataset.optimize.compact_files(defer_index_remap=True)


def _in_format(version: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        lance.write_dataset(_columns(20), path, data_storage_version=version)
        lance.write_dataset(_columns(20), path, mode="append")
        lance.dataset(path).delete("id < 5")
        lance.dataset(path).add_columns({"more": "id + 1"})
        lance.dataset(path).update_config({"key": "value"})

    return make


def _with_blobs(path: Path) -> None:
    outside = path.parent / "outside"
    outside.mkdir()
    (outside / "object").write_bytes(b"external")
    schema = pa.schema([pa.field("id", pa.int64()), blob_field("blob")])
    values = [b"inline", b"p" * 100_000, b"d" * (5 << 20), None, Blob.empty()]
    values.append(Blob.from_uri(f"file://{outside}/object"))
    blobs = pa.table([pa.array(range(6)), blob_array(values)], schema=schema)
    bases = [DatasetBasePath(path=str(outside), name="outside", is_dataset_root=False)]
    lance.write_dataset(blobs, path, data_storage_version="2.2", initial_bases=bases)
    lance.dataset(path).insert(blobs.slice(0, 3))


def _cloned(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def clone(path: Path) -> None:
        make(path.parent / "source")
        source = lance.dataset(path.parent / "source")
        source.shallow_clone(str(path), source.version)
        lance.dataset(path).delete("id = 4")

    return clone


def _with_overlays(path: Path) -> None:
    lance.write_dataset(_columns(20), path)
    add_overlay(path, "text", "overlaid")


KINDS: dict[str, Callable[[Path], None]] = {
    **{version: _in_format(version) for version in ("legacy", "2.0", "2.1", "2.2", "2.3")},
    "indexes": partial(_with_indexes, stable_row_ids=False),
    "indexes and stable row ids": partial(_with_indexes, stable_row_ids=True),
    "overlays": _with_overlays,
    "blobs": _with_blobs,
    "a clone with indexes": _cloned(partial(_with_indexes, stable_row_ids=False)),
    "a clone with blobs": _cloned(_with_blobs),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_that_lance_stores_for_a_version_is_named(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERLAYS, "1")
    path, copy = tmp_path / "table", tmp_path / "copy"
    KINDS[kind](path)
    dataset = lance.dataset(path)
    dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    table = memwal.open(str(path), allow_external=[str(tmp_path)])

    stored = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    stored = {key for key in stored if not key.startswith(("_versions/", "_refs/"))}
    named = {
        o.key for o in stored_objects(table.base()).values() if o.store is table.location.store
    }
    # A clean-up leaves records of commits.
    assert {key for key in stored - named if not key.startswith("_transactions/")} == set()
    assert named - stored == set()
    assert table.verify(deep=True).clean

    before = read(dataset)
    table.copy_to(str(copy))
    for folder in (path, tmp_path / "source"):
        shutil.rmtree(folder, ignore_errors=True)

    assert memwal.open(str(copy), allow_external=[str(tmp_path)]).verify(deep=True).clean
    assert read(lance.dataset(copy)) == before


def read(dataset: lance.LanceDataset) -> dict[str, object]:
    """Every value of a data set, those of blobs included, and what an index finds."""
    blobs = {}
    if "blob" in dataset.schema.names:
        addresses = dataset.to_table(columns=[], with_row_address=True)["_rowaddr"].to_pylist()
        files = dataset.take_blobs("blob", addresses=addresses)
        blobs = {"blob": [file.readall() if file is not None else None for file in files]}
    columns = [name for name in dataset.schema.names if name != "blob"]
    found = dataset.to_table(columns=["id"], filter="id < 7").to_pydict()
    return {**blobs, "found": found, **dataset.to_table(columns=columns).to_pydict()}


@pytest.mark.parametrize("cut", [None, 1])
@pytest.mark.parametrize("number", [0, 1])
def test_blobs_that_are_lost_or_cut_are_found(tmp_path: Path, number: int, cut: int | None) -> None:
    path = tmp_path / "table"
    _with_blobs(path)
    table = memwal.open(str(path), allow_external=[str(tmp_path)])
    blobs = sorted(path.glob("data/*/*.blob"))[number]
    if cut is None:
        blobs.unlink()
    else:
        os.truncate(blobs, blobs.stat().st_size - cut)

    found = table.verify().findings

    assert {finding.object for finding in found} == {str(blobs.relative_to(path))}


@pytest.mark.parametrize("list_files", [named_files, external_files])
def test_files_are_not_listed_past_a_field_that_is_not_known(
    tmp_path: Path, list_files: Callable[[bytes], object]
) -> None:
    lance.write_dataset(_columns(2), tmp_path)
    newer = add_version(tmp_path, lambda message: set_unknown_field(message.fragments[0].files[0]))

    with pytest.raises(NewerFormatError, match="999 of DataFile"):
        list_files(newer.read_bytes())
