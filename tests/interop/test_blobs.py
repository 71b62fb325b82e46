"""Blob columns: memwal reads and keeps those of Lance's clients, and they those of memwal."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments
from support.data.blobs import (
    MARKED,
    V2,
    VALUES,
    VERSIONS,
    Value,
    bytes_read,
    read,
    rows,
    schema,
    stored,
)
from support.data.quarantined import quarantine
from support.data.quarantined import rules as quality_rules

import memwal
import memwal.queries
from memwal.base_table.blobs import read_schema
from memwal.errors import InvalidInputError, ObjectNotFoundError
from memwal.quality.quarantine import origins_of
from memwal.quarantine_review import release
from memwal.region.router import UNSHARDED_ID

_KINDS = pytest.mark.parametrize("kind", [MARKED, V2])
_COUNT = len(VALUES)
_AT_ONCE: Any = {
    "dry_run": False,
    "grace_seconds": 0,
    "orphan_grace_seconds": 0,
    "retention_seconds": 0,
    "version_retention_seconds": 0,
}


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
    table.collect_garbage(**_AT_ONCE)
    assert stored(table.uri) == expected


def _create(kind: str, uri: Path) -> memwal.Table:
    return memwal.create(
        uri, schema(kind, key=False), primary_key="id", data_storage_version=VERSIONS[kind]
    )


def _put_by_lance(table: memwal.Table, given: pa.Table, *, close: bool = True) -> Any:
    """Write rows with Lance's own writer, which flushes when it closes; return it if it is open."""
    writer = lance.dataset(table.uri).mem_wal_writer(str(UNSHARDED_ID))
    writer.put(given.cast(lance.dataset(table.uri).schema))
    if not close:
        return writer
    writer.close()
    return None


def _taken(queries: memwal.queries.Queries, ids: Iterable[int]) -> dict[int, bytes | None]:
    keys = list(ids)
    return dict(zip(keys, read(queries.take_blobs(keys, "image")), strict=True))


def _scanned(queries: memwal.queries.Queries) -> dict[int, bytes | None]:
    rows = queries.scan(columns=["id", "image"], blob_handling="all_binary").to_table()
    return dict(zip(rows.column("id").to_pylist(), rows.column("image").to_pylist(), strict=True))


@_KINDS
def test_rows_are_read_wherever_they_are(tmp_path: Path, kind: str) -> None:
    table = _create(kind, tmp_path / "t.lance")
    ids = range(_COUNT)
    expected: dict[int, bytes | None] = dict(zip(ids, VALUES, strict=True))
    sizes = [None if value is None else len(value) for value in VALUES]

    def check(queries: memwal.queries.Queries) -> None:
        described = queries.scan().to_table().sort_by("id")
        assert described.schema == read_schema(table.schema)
        images = described.column("image").to_pylist()
        assert [None if image is None else image["size"] for image in images] == sizes
        assert queries.lookup(ids).to_table() == described
        for at, key in enumerate(ids):
            assert queries.lookup(key).to_table() == described.slice(at, 1), key
        assert _scanned(queries) == expected
        assert _taken(queries, [*ids, 99]) == {**expected, 99: None}
        assert queries.count_rows(filter="image is null") == 1

    with table.writer() as writer:
        writer.upsert(rows(kind, ids, VALUES, key=False))
        check(writer)
        check(table.fresh())
        writer.flush()
        check(table)
    table.merge()
    check(table)
    assert stored(table.uri) == expected


@pytest.mark.few(1)
@_KINDS
def test_the_newest_blob_of_each_key_is_merged(tmp_path: Path, kind: str) -> None:
    table = _create(kind, tmp_path / "t.lance")
    with table.writer() as writer:
        writer.upsert(rows(kind, range(_COUNT), VALUES, key=False))
        writer.flush()
        table.merge()
        writer.upsert(rows(kind, [0, 4], [b"new", b"n" * 50_000], key=False))
        writer.flush()
        # Some columns of rows in the base table, in a generation, and of a new one.
        writer.upsert(pa.table({"id": [3, 4, 7], "n": [30, 40, 70]}), partial=True)
        writer.delete([2])
    expected = {0: b"new", 1: None, 3: VALUES[3], 4: b"n" * 50_000, 7: None}
    assert _scanned(table) == expected
    table.merge(divide_bytes=0, max_tasks=2)
    assert stored(table.uri) == expected
    numbers = table.scan(columns=["id", "n"]).to_table().sort_by("id").column("n").to_pylist()
    assert numbers == [0, 1, 30, 40, 70]
    assert not table.verify().findings
    table.compact(min_fragments=2, deleted_percent=1)
    assert stored(table.uri) == expected
    assert not table.verify().findings


@_KINDS
def test_lance_replays_and_flushes_what_memwal_logged(tmp_path: Path, kind: str) -> None:
    table = _create(kind, tmp_path / "t.lance")
    writer = table.writer()
    writer.upsert(rows(kind, range(_COUNT), VALUES, key=False))
    writer.delete([0])
    writer.abort()
    _put_by_lance(table, rows(kind, [9], [b"lance"], key=False))
    expected = {**dict(zip(range(1, _COUNT), VALUES[1:], strict=True)), 9: b"lance"}
    assert _scanned(table) == expected
    assert _taken(table, expected) == expected
    table.merge()
    assert stored(table.uri) == expected
    assert not table.verify().findings


@_KINDS
def test_memwal_replays_and_flushes_what_lance_logged(tmp_path: Path, kind: str) -> None:
    table = _create(kind, tmp_path / "t.lance")
    native = _put_by_lance(table, rows(kind, range(_COUNT), VALUES, key=False), close=False)
    expected = dict(zip(range(_COUNT), VALUES, strict=True))
    assert _scanned(table.fresh()) == expected
    with table.writer() as writer:
        writer.upsert(rows(kind, [9], [b"memwal"], key=False))
    expected[9] = b"memwal"
    assert _scanned(table) == expected
    table.merge()
    assert stored(table.uri) == expected
    assert not table.verify().findings
    with pytest.raises(OSError):
        native.put(rows(kind, [10], [b"late"], key=False).cast(lance.dataset(table.uri).schema))


@_KINDS
def test_a_generation_is_as_lance_flushes_it(tmp_path: Path, kind: str) -> None:
    ours, theirs = (_create(kind, tmp_path / name) for name in ("ours.lance", "theirs.lance"))
    given = rows(kind, range(_COUNT), VALUES, key=False)
    with ours.writer() as writer:
        writer.upsert(given)
    _put_by_lance(theirs, given)
    flushed = []
    for table in (ours, theirs):
        (generation,) = (Path(table.uri) / "_mem_wal").glob("*/*_gen_*")
        dataset = lance.dataset(generation)
        rows_of = dataset.to_table()
        data = sorted(path.stat().st_size for path in (generation / "data").rglob("*.blob"))
        flushed.append((dataset.schema.names, rows_of, stored(generation), data))
    assert flushed[0] == flushed[1]


def test_what_cannot_have_blobs_is_refused(tmp_path: Path) -> None:
    keyed = pa.schema([pa.field("id", pa.large_binary(), False, metadata={MARKED: "true"})])
    nested = pa.schema([("id", pa.int64()), ("s", pa.struct([keyed.field(0).with_name("x")]))])
    for refused, name in ((keyed, "id"), (nested, "s")):
        with pytest.raises(InvalidInputError, match=name):
            memwal.create(tmp_path / "t.lance", refused, primary_key=["id"])


@pytest.fixture
def media(tmp_path: Path) -> str:
    """A folder with a file of ten digits."""
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "digits").write_bytes(b"0123456789")
    return f"file://{tmp_path}/media"


def test_blobs_in_plain_lists(tmp_path: Path, media: str) -> None:
    table = memwal.open(_create(V2, tmp_path / "t.lance").uri, allow_external=[media])
    images = [lance.Blob.from_uri(f"{media}/digits"), None, lance.Blob(data=b"own")]
    table.upsert({"id": [1, 2, 3], "n": [1, 2, 3], "image": images})
    table.upsert([{"id": 4, "n": 4, "image": lance.Blob(data=b"one row")}])
    found = [file and file.read() for file in table.fresh().take_blobs([1, 2, 3, 4], "image")]
    assert found == [b"0123456789", None, b"own", b"one row"]


def test_external_blobs_stay_where_they_are(tmp_path: Path, media: str) -> None:
    created = _create(V2, tmp_path / "t.lance")
    whole = lance.Blob.from_uri(f"{media}/digits")
    part = lance.Blob.from_uri(f"{media}/digits", position=2, size=3)
    given = rows(V2, range(3), [whole, part, b"own"], key=False)
    with created.writer() as writer, pytest.raises(InvalidInputError, match="allow_external"):
        writer.upsert(given)
    table = memwal.open(created.uri, allow_external=[media])
    expected = {0: b"0123456789", 1: b"234", 2: b"own"}
    kinds = {0: (3, 0, whole.uri), 1: (3, 3, part.uri), 2: (0, 3, "")}

    def check(queries: memwal.queries.Queries) -> None:
        described = queries.scan().to_table().to_pylist()
        images = {row["id"]: row["image"] for row in described}
        assert {
            key: (image["kind"], image["size"], image["blob_uri"]) for key, image in images.items()
        } == kinds
        assert _scanned(queries) == expected
        assert _taken(queries, expected) == expected

    with table.writer() as writer:
        writer.upsert(given)
        check(writer)
        writer.flush()
        check(writer)
        # The address is kept, and not followed.
        writer.upsert(pa.table({"id": [1], "n": [10]}), partial=True)
        check(table.fresh())
    table.merge()
    check(table)
    assert not table.verify().findings
    writer = table.writer()
    writer.upsert(pa.table({"id": [0], "n": [20]}), partial=True)
    writer.abort()
    _put_by_lance(table, rows(V2, [7], [part], key=False))
    expected[7], kinds[7] = b"234", kinds[1]
    check(table)
    table.merge()
    check(table)
    table.compact(min_fragments=2)
    check(table)
    assert {row["id"]: row["n"] for row in table.scan().to_table().to_pylist()}[0] == 20


def _blob(**parts: Any) -> pa.Array:
    names = [field.name for field in lance.blob_field("x").type.storage_type]
    storage = pa.array([{name: parts.get(name) for name in names}], _STORAGE)
    return pa.ExtensionArray.from_storage(lance.blob_field("x").type, storage)


_STORAGE = lance.blob_field("x").type.storage_type


@pytest.mark.parametrize(
    "wrong",
    [
        _blob(),
        _blob(data=b"a", uri="file:///a"),
        _blob(uri="digits"),
        _blob(uri="/etc/passwd"),
        _blob(uri="http://host/digits"),
        _blob(uri="file:///a", position=1),
        _blob(uri="file:///a", position=1, size=0),
        _blob(data=b"a", position=0, size=1),
    ],
    ids=str,
)
def test_blobs_that_no_flush_could_write_are_refused(tmp_path: Path, wrong: pa.Array) -> None:
    _create(V2, tmp_path / "t.lance")
    table = memwal.open(tmp_path / "t.lance", allow_external=["file:///a"])
    given = rows(V2, [1], [b""], key=False).set_column(1, "image", wrong)
    with table.writer() as writer, pytest.raises(InvalidInputError, match="image"):
        writer.upsert(given)


def test_bytes_and_addresses_become_blobs(tmp_path: Path, media: str) -> None:
    _create(V2, tmp_path / "t.lance")
    table = memwal.open(tmp_path / "t.lance", allow_external=[media])
    with table.writer() as writer:
        writer.upsert([{"id": 1, "image": b"bytes", "n": 1}, {"id": 2, "image": None, "n": 2}])
        writer.upsert({"id": [3], "image": [f"{media}/digits"], "n": [3]})
    assert _scanned(table) == {1: b"bytes", 2: None, 3: b"0123456789"}


def test_large_blobs_that_lance_has_logged(tmp_path: Path) -> None:
    """Their bytes are in the folder of a generation that no manifest names."""
    table = _create(V2, tmp_path / "t.lance")
    given = {number: bytes([number]) * 30_000 * number for number in range(1, 4)}
    native = _put_by_lance(table, rows(V2, given, [*given.values()], key=False), close=False)
    assert _scanned(table.fresh()) == given
    copy = table.copy_to(tmp_path / "copy.lance")
    assert copy.warnings == ()
    assert _scanned(memwal.open(tmp_path / "copy.lance").fresh()) == given
    (folder,) = (Path(table.uri) / "_mem_wal").glob("*/*_gen_*")
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))
    table.collect_garbage(**_AT_ONCE)
    assert _scanned(table.fresh()) == given
    with table.writer() as writer:
        writer.upsert(rows(V2, [9], [b"memwal"], key=False))
    table.merge()
    expected = {**given, 9: b"memwal"}
    assert stored(table.uri) == expected
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))
    table.collect_garbage(**_AT_ONCE)
    assert not folder.exists()
    del native


def _pending(uri: Path) -> tuple[memwal.Table, dict[int, bytes | None]]:
    table = _create(V2, uri)
    with table.writer() as writer:
        writer.upsert(rows(V2, range(_COUNT), VALUES, key=False))
    return table, dict(zip(range(_COUNT), VALUES, strict=True))


def test_a_generation_whose_blobs_are_damaged_waits(tmp_path: Path) -> None:
    table, expected = _pending(tmp_path / "t.lance")
    path = next((tmp_path / "t.lance" / "_mem_wal").rglob("*.blob"))
    data = path.read_bytes()
    for damage in (lambda: path.write_bytes(data[:-1]), path.unlink):
        damage()
        assert [finding.code for finding in table.verify().findings] == ["generation-damaged"]
        assert table.merge().skipped_regions
        # Nothing but the blobs themselves is needed for that.
        assert table.scan(columns=["n"]).to_table().num_rows == _COUNT
    path.write_bytes(data)
    assert not table.verify().findings
    table.merge()
    assert stored(table.uri) == expected


@pytest.mark.parametrize("module", ["memwal.lsm.flush.generation", "memwal.jobs.merge.rewrite"])
def test_blobs_that_were_not_written_whole_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    lost = []

    def write_and_lose(data: Any, where: Any, **options: Any) -> Any:
        written = write_fragments(data, where, **options)
        if not lost:
            lost.append(max((tmp_path / "t.lance").rglob("*.blob"), key=os.path.getmtime))
            os.truncate(lost[0], 1)
        return written

    monkeypatch.setattr(f"{module}.write_fragments", write_and_lose)
    table, expected = _pending(tmp_path / "t.lance")
    table.merge()
    assert stored(table.uri) == expected
    assert len(lost) == 1
    assert not table.verify().findings


@_KINDS
def test_a_row_that_is_too_large_is_refused(tmp_path: Path, kind: str) -> None:
    table = _create(kind, tmp_path / "t.lance")
    table.set_writer_defaults(max_row_bytes=10_000)
    with table.writer() as writer:
        writer.upsert(rows(kind, [1], [b"x" * 9_000], key=False))
        with pytest.raises(InvalidInputError, match="max_row_bytes"):
            writer.upsert(rows(kind, [2], [b"x" * 11_000], key=False))
    assert _scanned(table) == {1: b"x" * 9_000}


@_KINDS
def test_a_row_with_a_blob_comes_back_from_the_quarantine(
    tmp_path: Path, media: str, kind: str
) -> None:
    _create(kind, tmp_path / "t.lance")
    table = memwal.open(tmp_path / "t.lance", allow_external=[media])
    external = lance.Blob.from_uri(f"{media}/digits", position=1, size=2)
    values = [b"good", b"b" * 5_000, external if kind == V2 else b"bad"]
    given = rows(kind, range(3), values, key=False)
    given = given.set_column(2, "n", pa.array([1, -1, -1]))
    with table.writer() as writer:
        writer.upsert(given)
    table.merge(quality=quality_rules("quarantine"))
    assert stored(table.uri) == {0: b"good"}
    found = quarantine(table)
    assert set(release(table, found, origins_of(found.read())).released)
    assert _scanned(table) == {
        0: b"good",
        1: b"b" * 5_000,
        2: b"12" if kind == V2 else b"bad",
    }
    table.merge()
    assert not table.verify().findings


def test_a_table_of_which_lance_has_converted_the_blobs(tmp_path: Path) -> None:
    """In files of version 2.2 it makes ``lance.blob.v2`` of the mark, without ranges."""
    table = memwal.create(
        tmp_path / "t.lance",
        schema(MARKED, key=False),
        primary_key="id",
        data_storage_version="2.2",
    )
    expected = dict(zip(range(_COUNT), VALUES, strict=True))
    writer = table.writer()
    writer.upsert(rows(MARKED, expected, VALUES, key=False))
    writer.upsert(rows(V2, [7], [b"blob"], key=False))
    with pytest.raises(InvalidInputError):
        ranged = lance.Blob.from_uri(f"file://{tmp_path}/t.lance/x", position=0, size=1)
        writer.upsert(rows(V2, [8], [ranged], key=False))
    writer.abort()
    native = lance.dataset(table.uri).mem_wal_writer(str(UNSHARDED_ID))
    native.close()
    expected[7] = b"blob"
    assert _scanned(table) == expected
    table.merge()
    assert stored(table.uri) == expected
    assert not table.verify().findings


@pytest.mark.parametrize("first", ["memwal", "lance"])
def test_a_log_that_both_writers_wrote_is_replayed_by_lance(tmp_path: Path, first: str) -> None:
    """Lance refuses entries of one generation whose large blobs have not one place."""
    table = _create(V2, tmp_path / "t.lance")
    expected: dict[int, bytes | None] = {}
    natives = []
    order = ["memwal", "lance"] if first == "memwal" else ["lance", "memwal"]
    for number, name in enumerate(order * 2):
        expected[number] = bytes([number]) * 70_000
        given = rows(V2, [number], [expected[number]], key=False)
        if name == "lance":
            natives.append(_put_by_lance(table, given, close=False))
        else:
            writer = table.writer()
            writer.upsert(given)
            writer.abort()
    _put_by_lance(table, rows(V2, [9], [b"last"], key=False))
    expected[9] = b"last"
    assert _scanned(table) == expected
    with table.writer() as writer:
        writer.upsert(rows(V2, [10], [b"own"], key=False))
    table.merge()
    assert stored(table.uri) == {**expected, 10: b"own"}
    assert not table.verify().findings


@_KINDS
def test_a_fragment_with_large_blobs_is_not_small(tmp_path: Path, kind: str) -> None:
    size = 2 << 20
    for number in range(3):
        lance.write_dataset(
            rows(kind, [number], [b"x" * size]),
            tmp_path / "t.lance",
            mode="append",
            data_storage_version=VERSIONS[kind],
        )
    table = memwal.open(tmp_path / "t.lance")
    assert (table.status().base_bytes or 0) > 3 * size
    assert not table.compact(min_fragments=2, target_bytes=1 << 20).commits
    assert table.compact(min_fragments=2).commits


@_KINDS
def test_rows_keep_their_ids_and_their_blobs(tmp_path: Path, kind: str) -> None:
    """Also beside a column of a dictionary with narrow indices."""
    category = pa.field("category", pa.dictionary(pa.int8(), pa.string()))

    def given(ids: Iterable[int], values: Sequence[Value], *, key: bool) -> pa.Table:
        found = rows(kind, ids, values, key=key)
        column = pa.array(["a"] * found.num_rows).dictionary_encode().cast(category.type)
        return found.append_column(category, column)

    lance.write_dataset(
        given(range(_COUNT), VALUES, key=True),
        tmp_path / "t.lance",
        data_storage_version=VERSIONS[kind],
        enable_stable_row_ids=True,
    )
    table = memwal.enable(tmp_path / "t.lance")
    before = lance.dataset(table.uri).to_table(columns=["id"], with_row_id=True)
    with table.writer() as writer:
        writer.upsert(given([3, 4, 9], [b"three", b"4" * 50_000, b"nine"], key=False))
    expected = dict(zip(range(_COUNT), VALUES, strict=True))
    expected |= {3: b"three", 4: b"4" * 50_000, 9: b"nine"}
    assert _taken(table, expected) == expected
    table.merge()
    table.compact(min_fragments=2, deleted_percent=1)
    assert stored(table.uri) == expected
    assert _taken(table, expected) == expected
    after = lance.dataset(table.uri).to_table(columns=["id"], with_row_id=True, filter="id < 9")
    assert after.sort_by("id") == before.sort_by("id")
    assert not table.verify().findings


@_KINDS
def test_columns_are_added_beside_blobs_and_with_blobs(tmp_path: Path, kind: str) -> None:
    table = _create(kind, tmp_path / "t.lance")
    writer = table.writer()
    writer.upsert(rows(kind, range(_COUNT), VALUES, key=False))
    writer.flush()
    writer.upsert(rows(kind, [9], [b"logged"], key=False))
    writer.abort()
    other = schema(kind).field("image").with_name("other")
    lance.dataset(table.uri).add_columns(pa.schema([pa.field("extra", pa.int64()), other]))
    expected = {**dict(zip(range(_COUNT), VALUES, strict=True)), 9: b"logged"}
    assert _scanned(table.fresh()) == expected
    assert _taken(table.fresh(), expected) == expected
    with table.writer() as later:
        later.upsert(pa.table({"id": [3], "other": [b"o" * 3_000]}), partial=True)
    table.merge()
    assert stored(table.uri) == expected
    assert stored(table.uri, "other") == {**dict.fromkeys(expected), 3: b"o" * 3_000}
    assert not table.verify().findings


@_KINDS
def test_blobs_are_appended_without_a_key(tmp_path: Path, kind: str) -> None:
    table = memwal.create(
        tmp_path / "t.lance",
        schema(kind, key=False),
        primary_key=None,
        data_storage_version=VERSIONS[kind],
    )
    with table.writer() as writer:
        writer.append(rows(kind, range(_COUNT), VALUES, key=False))
    expected = dict(zip(range(_COUNT), VALUES, strict=True))
    assert _scanned(table) == expected
    before = bytes_read()
    assert table.scan(columns=["n"]).to_table().num_rows == _COUNT
    assert bytes_read() - before < len(VALUES[-1] or b"")
    table.merge()
    assert stored(table.uri) == expected
    assert not table.verify().findings
    with pytest.raises(InvalidInputError):
        table.take_blobs([1], "image")


@pytest.mark.parametrize("is_merged", [False, True])
def test_an_external_blob_that_is_gone_is_named(tmp_path: Path, is_merged: bool) -> None:
    media = tmp_path / "media" / "file"
    media.parent.mkdir()
    media.write_bytes(b"x" * 5_000)
    created = memwal.create(
        tmp_path / "t.lance",
        schema(V2, key=False),
        primary_key="id",
        data_storage_version=VERSIONS[V2],
    )
    table = memwal.open(created.uri, allow_external=[f"file://{media.parent}"])
    with table.writer() as writer:
        writer.upsert(
            rows(V2, [1, 57], [b"abc", lance.Blob.from_uri(f"file://{media}")], key=False)
        )
    if is_merged:
        table.merge()
    media.unlink()
    assert read(table.fresh().take_blobs([1], "image")) == [b"abc"]
    with pytest.raises(ObjectNotFoundError, match=f"file://{media}.*57"):
        table.fresh().take_blobs([1, 57], "image")
