"""Blob columns: memwal reads and keeps those of Lance's clients, and they those of memwal."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

import memwal
from memwal.errors import InvalidInputError
from tests.support.data.blobs import MARKED, V2, VALUES, VERSIONS, bytes_read, read, rows, stored

_KINDS = pytest.mark.parametrize("kind", [MARKED, V2])
_COUNT = len(VALUES)


def _plain(kind: str, uri: Path, *, key: bool = True) -> memwal.Table:
    """Return a table of Lance with four fragments."""
    for number in range(4):
        lance.write_dataset(
            rows(kind, range(number * _COUNT, (number + 1) * _COUNT), VALUES, key=key),
            uri,
            mode="append",
            data_storage_version=VERSIONS[kind],
        )
    return memwal.open(uri)


@_KINDS
@pytest.mark.parametrize("key", [True, False])
def test_a_plain_table_is_read_as_by_lance(tmp_path: Path, kind: str, key: bool) -> None:
    table = _plain(kind, tmp_path / "t.lance", key=key)
    dataset = lance.dataset(table.uri)
    for handling in (None, "blobs_descriptions", "all_binary"):
        expected = dataset.scanner(blob_handling=handling).to_table()
        scan = table.scan(blob_handling=handling)
        assert scan.schema == expected.schema
        assert scan.to_table() == expected
    assert table.scan(columns=["n", "image"], limit=3).to_table().num_rows == 3
    for filter in ("image is null", "image is not null and n > 7"):
        assert table.count_rows(filter=filter) == dataset.count_rows(filter=filter)
    with pytest.raises(InvalidInputError):
        table.scan(blob_handling="lazy").to_table()
    if key:
        found = table.lookup([2, 3]).to_table()
        assert found == dataset.take([2, 3])


@_KINDS
def test_blobs_of_a_plain_table_are_taken_by_key(tmp_path: Path, kind: str) -> None:
    table = _plain(kind, tmp_path / "t.lance")
    given = [3, 1, 99, 2, 4, 3]
    expected = [VALUES[3], None, None, VALUES[2], VALUES[4], VALUES[3]]
    assert read(table.take_blobs(given, "image")) == expected
    assert read(table.at(1).take_blobs([19, 4], "image")) == [None, VALUES[4]]
    assert table.take_blobs([], "image") == []
    with pytest.raises(InvalidInputError):
        table.take_blobs([1], "n")


@_KINDS
def test_a_scan_of_other_columns_reads_no_blob(tmp_path: Path, kind: str) -> None:
    size = 20 << 20
    lance.write_dataset(
        rows(kind, range(2), [b"a" * size, b"b" * size]),
        tmp_path / "t.lance",
        data_storage_version=VERSIONS[kind],
    )
    table = memwal.open(tmp_path / "t.lance")
    before = bytes_read()
    assert table.scan(columns=["id", "n"]).to_table().num_rows == 2
    assert table.count_rows(filter="n > 0") == 1
    assert table.scan().to_table().num_rows == 2
    assert bytes_read() - before < size


@_KINDS
def test_jobs_keep_the_blobs_of_a_plain_table(tmp_path: Path, kind: str) -> None:
    table = _plain(kind, tmp_path / "t.lance")
    expected = stored(table.uri)
    assert table.status().base_rows == 4 * _COUNT
    table.compact(min_fragments=2)
    assert len(lance.dataset(table.uri).get_fragments()) == 1
    assert stored(table.uri) == expected
    assert not table.verify().findings
    table.collect_garbage()
    assert stored(table.uri) == expected
