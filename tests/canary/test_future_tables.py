"""What a newer Lance or memwal may write is refused by one error, and nothing is changed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import lance
import pyarrow as pa
import pytest
from support.data.future import OVERLAYS, add_overlay, add_version, set_unknown_field
from support.data.tables import REGION, collect_now, folder, log, manifest, rows, state

import memwal
from memwal.base_table.commit_records import commit_operation
from memwal.errors import NewerFormatError
from memwal.format._proto import lance_manifest_pb2
from memwal.format.paths import REGION_MARKS_DIR, generation_dir, wal_key
from memwal.jobs.job import JobResult

Manifest = lance_manifest_pb2.Manifest

CALLS: dict[str, Callable[[memwal.Table, Path], Any]] = {
    "open": lambda table, _: memwal.open(table.uri),
    "scan": lambda table, _: table.scan().to_table(),
    "lookup": lambda table, _: table.lookup([1]).to_table(),
    "status": lambda table, _: table.status(),
    "writer": lambda table, _: table.writer().upsert(rows({5: 5})),
    "merge": lambda table, _: table.merge(),
    "build_indexes": lambda table, _: table.build_indexes(),
    "compact": lambda table, _: table.compact(),
    "collect": lambda table, _: collect_now(table, version_retention_seconds=0),
    "copy": lambda table, tmp_path: table.copy_to(str(tmp_path / "copy")),
    "verify": lambda table, _: table.verify(),
    "snapshot": lambda table, _: table.build_snapshot(),
}


@pytest.fixture
def filled(table: memwal.Table) -> memwal.Table:
    """A table with merged, flushed and logged rows."""
    writer = table.writer()
    writer.upsert(rows({1: 1, 2: 2}))
    writer.flush()
    table.merge()
    writer.upsert(rows({2: 3}))
    writer.flush()
    writer.upsert(rows({4: 4}))
    writer.abort()
    return table


def stored(table: memwal.Table) -> dict[str, bytes]:
    """Every file of a table, apart from region marks, of which superseded ones are deleted."""
    root = folder(table)
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and REGION_MARKS_DIR not in path.parts
    }


def set_flags(reader: int, writer: int) -> Callable[[Manifest], None]:
    def change(message: Manifest) -> None:
        message.reader_feature_flags |= reader
        message.writer_feature_flags |= writer

    return change


def set_file_format(message: Manifest) -> None:
    message.data_format.file_format = "vortex"


def set_kind_of_deletions(message: Manifest) -> None:
    message.fragments[0].deletion_file.file_type = 9  # type: ignore[assignment]


CHANGES = {
    "indexes that carry columns": set_flags(128, 128),
    "fragment tree": set_flags(4096, 4096),
    "tagged fragment reuse": set_flags(1024, 1024),
    "row lineage in columns": set_flags(2048, 2048),
    "another flag": set_flags(1 << 40, 1 << 40),
    "a flag of writers": set_flags(0, 1 << 12),
    "another file format": set_file_format,
    "another kind of deletions": set_kind_of_deletions,
}


@pytest.mark.few(4)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_no_call_touches_a_table_of_a_newer_format(
    filled: memwal.Table, tmp_path: Path, change: Callable[[Manifest], None]
) -> None:
    add_version(folder(filled), change)
    before = stored(filled)
    for name, call in CALLS.items():
        with pytest.raises(NewerFormatError):
            call(filled, tmp_path)
            pytest.fail(name)
    assert stored(filled) == before
    assert not (tmp_path / "copy").exists()


def test_an_older_version_of_a_newer_format_keeps_what_it_needs(filled: memwal.Table) -> None:
    root = folder(filled)
    dataset = lance.dataset(filled.uri)
    newer = add_version(root, set_flags(512, 512))
    content = newer.read_bytes()
    newer.unlink()
    add_version(root)
    add_version(root)
    newer.write_bytes(content)
    dataset.tags.create("kept", dataset.version + 1)
    before = stored(filled)

    with pytest.raises(NewerFormatError):
        collect_now(filled)

    assert stored(filled) == before


def test_a_log_with_row_ids_is_not_replayed(filled: memwal.Table) -> None:
    region_id = manifest(filled).region_id
    position = max(log(filled))
    path = folder(filled) / wal_key(region_id, position + 1)
    logged = rows({7: 7}).append_column("__wal_row_id", pa.array([77], pa.uint64()))
    schema = logged.schema.with_metadata(
        {"writer_epoch": str(manifest(filled).writer_epoch), "generation": "3"}
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
        stream.write_table(logged.replace_schema_metadata(schema.metadata))
    entry = path.read_bytes()

    for call in (
        lambda: filled.writer().upsert(rows({5: 5})),
        lambda: filled.fresh().scan().to_table(),
        filled.verify,
    ):
        with pytest.raises(NewerFormatError):
            call()

    assert path.read_bytes() == entry
    assert manifest(filled).flushed[-1].generation == 2
    # What is flushed is not affected.
    assert state(filled) == {1: 1, 2: 3}


def test_a_generation_with_row_ids_is_not_merged(filled: memwal.Table) -> None:
    (pending,) = (f for f in manifest(filled).flushed if f.generation == 2)
    path = folder(filled) / generation_dir(REGION, pending.path)
    lance.dataset(str(path)).add_columns({"__wal_row_id": "cast(7 as bigint)"})
    version = filled.base().version

    for call in (lambda: filled.scan().to_table(), filled.verify):
        with pytest.raises(NewerFormatError):
            call()
    assert filled.merge().warnings

    assert filled.base().version == version
    assert path.exists()


def test_a_column_of_such_a_name_that_was_dropped_is_the_tables_own(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    table = memwal.create(
        uri,
        pa.schema([("id", pa.int64()), ("__note", pa.string()), ("n", pa.int64())]),
        primary_key="id",
    )
    with table.writer() as writer:
        writer.upsert(pa.table({"id": [1], "__note": ["a"], "n": [1]}))
        writer.flush()
        writer.upsert(pa.table({"id": [2], "__note": ["b"], "n": [2]}))
    lance.dataset(uri).drop_columns(["__note"])

    table.writer().close()

    expected = [{"id": 1, "n": 1}, {"id": 2, "n": 2}]
    assert sorted(table.fresh().scan().to_table().to_pylist(), key=str) == expected
    table.merge()
    assert table.verify().clean


def test_an_unknown_operation_may_have_changed_anything(filled: memwal.Table) -> None:
    before = filled.base()
    assert commit_operation(before, before.version) is not None
    operation_of_field_200 = b"\x08\x01\xc2\x0c\x02\x08\x01"
    add_version(folder(filled), commit_record=operation_of_field_200)

    assert commit_operation(filled.base(), before.version + 1) is None
    filled.merge()
    assert state(filled) == {1: 1, 2: 3}


class TestUnknownFields:
    """A field without a flag: Lance reads the rows, and nothing is committed, copied or deleted."""

    FIELDS: ClassVar[dict[str, dict[str, Any]]] = {
        "Manifest": {"change": set_unknown_field},
        "DataFragment": {"change": lambda message: set_unknown_field(message.fragments[0])},
        "DataFile": {"change": lambda message: set_unknown_field(message.fragments[0].files[0])},
        "DeletionFile": {
            "change": lambda message: set_unknown_field(message.fragments[0].deletion_file)
        },
        "BasePath": {"change": lambda message: set_unknown_field(message.base_paths.add(path="/"))},
        "IndexMetadata": {"change_indexes": lambda message: set_unknown_field(message.indices[0])},
        "IndexFile": {
            "change_indexes": lambda message: set_unknown_field(message.indices[0].files.add())
        },
    }
    READS = ("open", "scan", "lookup", "writer", "verify")

    @pytest.mark.few(3)
    @pytest.mark.parametrize("message", FIELDS)
    def test_no_job_touches_a_table(
        self, filled: memwal.Table, tmp_path: Path, message: str
    ) -> None:
        if message == "DeletionFile":
            lance.dataset(filled.uri).delete("id = 1")
        before = filled.scan().to_table()
        add_version(folder(filled), **self.FIELDS[message])
        if message == "BasePath":
            filled = memwal.open(filled.uri, allow_external=["/"])
        files = stored(filled)

        for name, call in CALLS.items():
            if name not in self.READS:
                with pytest.raises(NewerFormatError, match=f"999 of {message}"):
                    call(filled, tmp_path)
                    pytest.fail(name)

        assert stored(filled) == files
        assert not (tmp_path / "copy").exists()
        assert filled.scan().to_table() == before
        assert "newer-format" in {found.code for found in filled.verify(quick=True).findings}
        filled.writer().upsert(rows({5: 5}))
        assert 5 in state(filled.fresh())

    @pytest.mark.parametrize("kept", ["by a tag", "by a branch", "by its age", "not at all"])
    def test_a_collection_looks_at_the_versions_that_stay(
        self, filled: memwal.Table, kept: str
    ) -> None:
        newer = add_version(folder(filled), set_unknown_field)
        dataset = lance.dataset(filled.uri)
        if kept == "by a tag":
            dataset.tags.create("kept", dataset.version)
        elif kept == "by a branch":
            dataset.create_branch("kept")
        dataset.delete("id = 1")
        files = stored(filled)

        def collect() -> JobResult:
            return collect_now(
                filled, version_retention_seconds=3600 if kept == "by its age" else 0
            )

        if kept == "not at all":
            collect()
            assert not newer.exists()
        else:
            with pytest.raises(NewerFormatError):
                collect()
            assert stored(filled) == files

    def test_a_version_that_lance_would_restore_in_part_is_not_restored(
        self, filled: memwal.Table
    ) -> None:
        add_version(folder(filled), set_unknown_field)
        newer = filled.base().version
        assert filled.base().newer_fields == ("field 999 of Manifest",)
        lance.dataset(filled.uri).delete("id = 1")
        assert filled.base().newer_fields == (), "Lance has dropped the field"
        files = stored(filled)

        with pytest.raises(NewerFormatError):
            filled.restore(newer)

        assert stored(filled) == files

    def test_lance_searches_indexes_that_it_may_know_more_of(self, filled: memwal.Table) -> None:
        filled.merge()
        lance.dataset(filled.uri).create_scalar_index("text", "INVERTED", name="text_idx")
        lance.dataset(filled.uri).create_scalar_index("id", "BTREE", name="id_idx")
        add_version(
            folder(filled), change_indexes=lambda found: set_unknown_field(found.indices[1])
        )

        assert "999" in str(filled.base().index_caveat)
        assert filled.search_text("2=3", column="text", k=1).to_table()["id"].to_pylist() == [2]
        assert state(filled.lookup([2]).to_table()) == {2: 3}


class TestDataOverlays:
    """Lance reads them only if an environment variable is set; then every job does."""

    @pytest.fixture
    def overlaid(self, table: memwal.Table, monkeypatch: pytest.MonkeyPatch) -> memwal.Table:
        """Two fragments; the row of key 1 has its text from an overlay."""
        for values in ({1: 0, 2: 2}, {3: 3}):
            table.upsert(rows(values))
            table.merge()
        monkeypatch.setenv(OVERLAYS, "1")
        add_overlay(folder(table), "text", "overlaid")
        return table

    @staticmethod
    def texts(table: memwal.Table) -> dict[int, str]:
        found = table.scan().to_table()
        return dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))

    VALUES: ClassVar = {1: "overlaid", 2: "2=2", 3: "3=3"}

    def test_a_copy_has_them(self, overlaid: memwal.Table, tmp_path: Path) -> None:
        overlaid.copy_to(str(tmp_path / "copy"))

        copy = memwal.open(str(tmp_path / "copy"))
        assert self.texts(copy) == self.VALUES
        assert (tmp_path / "copy" / "data" / "overlay.lance").exists()

    def test_a_damaged_one_is_found(self, overlaid: memwal.Table, tmp_path: Path) -> None:
        os.truncate(folder(overlaid) / "data" / "overlay.lance", 10)

        named = {found.object for found in overlaid.verify().findings}
        assert "data/overlay.lance" in named

    def test_a_compaction_keeps_the_values(self, overlaid: memwal.Table) -> None:
        result = overlaid.compact(min_fragments=2)

        assert result.metrics["fragments_removed"] == 2
        assert self.texts(overlaid) == self.VALUES

    @pytest.mark.parametrize("divide_bytes", [0, 1 << 30])
    def test_a_merge_keeps_the_values(self, overlaid: memwal.Table, divide_bytes: int) -> None:
        overlaid.upsert(rows({2: 5, 4: 4}))
        overlaid.merge(divide_bytes=divide_bytes)

        assert self.texts(overlaid) == {**self.VALUES, 2: "2=5", 4: "4=4"}
        assert overlaid.status().base_rows == 4

    def test_searches_do_not_find_values_that_were_replaced(self, overlaid: memwal.Table) -> None:
        dataset = lance.dataset(overlaid.uri)
        dataset.create_scalar_index("text", "INVERTED", name="text_idx")
        add_overlay(folder(overlaid), "text", "zebra", offset=0)

        def found(text: str) -> list[int]:
            hits = overlaid.search_text(text, column="text", k=5).to_table()
            return hits["id"].to_pylist()  # type: ignore[no-any-return]

        assert found("zebra") == [1]
        assert found("overlaid") == []
        assert overlaid.lookup([1]).to_table()["text"].to_pylist() == ["zebra"]

    def test_without_the_variable_no_call_touches_the_table(
        self, overlaid: memwal.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(OVERLAYS)
        before = stored(overlaid)
        for name, call in CALLS.items():
            with pytest.raises(NewerFormatError):
                call(overlaid, tmp_path)
                pytest.fail(name)
        assert stored(overlaid) == before
