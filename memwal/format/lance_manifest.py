"""Manifests and schemas as Lance stores them.

No call of pylance returns the whole index section of a manifest.

Every manifest that memwal reads passes one gate, in :func:`_parse_manifest`: if it uses a feature
that this release does not know, NewerFormatError is raised before anything in it is believed. Lance
itself refuses fewer of them: of a table that Lance can read, memwal might still copy too few files,
or collect too many. Code that lists the files of a version gets them from :func:`named_files` and
:func:`external_files`, which also refuse fields that are not known.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final
from uuid import UUID

from google.protobuf.timestamp_pb2 import Timestamp

from memwal.errors import CorruptDataError
from memwal.format._proto import lance_manifest_pb2, lance_schema_pb2
from memwal.format.lance_files import (
    MAGIC,
    FileKind,
    NamedFile,
    data_files,
    named_deletions,
)
from memwal.format.memwal_index import parse_message, parse_uuid
from memwal.format.newer_formats import (
    BASE_PATHS,
    OVERLAYS,
    check_features,
    check_fields,
    unknown_fields,
)
from memwal.format.paths import MEM_WAL_INDEX_NAME, SYSTEM_INDEX_PREFIX, index_file_key

_Entry = lance_manifest_pb2.IndexMetadata
_Located = lance_manifest_pb2.DataFile | lance_manifest_pb2.DeletionFile | _Entry
# Position of the manifest message, major and minor version of the file, magic.
_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
_MANIFEST_FORMAT: Final = (0, 2)

_MANIFEST: Final = "the table's manifest"

# In the metadata of a column with blobs that may be in files of their own.
_BLOB: Final = b"lance.blob.v2"
# Begins the type of a dictionary.
_DICTIONARY: Final = b"dict:"
# A dictionary with narrow indices in the repr of a schema.
_NARROW_DICTIONARY: Final = re.compile(
    r'LogicalType\("dict:(?P<values>[^"]*):u?int(8|16):(true|false)"\)'
)
# First format of data files that tell the encoding of a column.
_TELLS_ENCODING: Final = (2, 1)
# Encodings of the first format, which a schema still has.
_PLAIN: Final = 1
_VAR_BINARY: Final = 2

# A serialised roaring bitmap without a container.
_NO_FRAGMENTS: Final = struct.pack("<II", 12346, 0)


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Entry of one index segment in a table's manifest."""

    uuid: UUID  # name of the segment's folder below ``_indices``
    _: KW_ONLY
    name: str
    fields: tuple[int, ...]  # Lance field ids of the indexed columns
    dataset_version: int  # version of the table that it was built on
    index_version: int  # version of the index format; 0 if absent
    details: bytes  # a protobuf message; empty if absent
    fragment_bitmap: bytes | None  # fragments it covers, as a serialised 32-bit roaring bitmap

    @property
    def covers_some(self) -> bool:
        """True if it covers a fragment."""
        return self.fragment_bitmap not in (None, _NO_FRAGMENTS)


def read_index_section(manifest: bytes, *, name: str = _MANIFEST) -> list[IndexEntry]:
    """Return every index entry of a table's manifest file, in the order of the file.

    ``name`` is the name of the file in error messages: its key. Raises CorruptDataError if the
    bytes are not a Lance manifest, or a length or position in them leads outside, and
    NewerFormatError if it has a field that is not known.
    """
    message = _parse_manifest(manifest, name)
    entries = _index_entries(message, manifest, name)
    check_fields(name, message, *entries)
    return [_entry_from(entry, name) for entry in entries]


def find_mem_wal_index(manifest: bytes, *, name: str = _MANIFEST) -> IndexEntry | None:
    """Return the entry of the MemWAL index in a table's manifest file; None if it has none.

    Raises CorruptDataError as :func:`read_index_section`, or if there are several.
    """
    message = _parse_manifest(manifest, name)
    return _mem_wal_index(_index_entries(message, manifest, name), name)


def _mem_wal_index(entries: Iterable[_Entry], name: str) -> IndexEntry | None:
    found = [entry for entry in entries if entry.name == MEM_WAL_INDEX_NAME]
    if len(found) > 1:
        raise CorruptDataError(
            f"{name} has {len(found)} entries named {MEM_WAL_INDEX_NAME} where at most one may "
            "be; look at the commits before it"
        )
    return _entry_from(found[0], name) if found else None


@dataclass(frozen=True, slots=True)
class ManifestTraits:
    """Properties of a version that decide how its rows are read."""

    index: IndexEntry | None  # of MemWAL
    branch: str | None  # None for the main branch
    has_overlays: bool  # data overlay files hold newer values than data files
    newer_fields: tuple[str, ...]  # that are not known, in words


def read_traits(manifest: bytes) -> ManifestTraits:
    """Read the properties of a version. Raises CorruptDataError as :func:`find_mem_wal_index`."""
    message = _parse_manifest(manifest, _MANIFEST)
    entries = _index_entries(message, manifest, _MANIFEST)
    return ManifestTraits(
        _mem_wal_index(entries, _MANIFEST),
        message.branch or None,
        bool(message.reader_feature_flags & OVERLAYS),
        unknown_fields(message, *entries),
    )


def branch_of(message: bytes) -> str | None:
    """Return the branch that a manifest's message is of; None for the main branch."""
    return parse_message(lance_manifest_pb2.Manifest, message, name=_MANIFEST).branch or None


def named_files(manifest: bytes, *, name: str = _MANIFEST) -> list[NamedFile]:
    """Return every file that a table's manifest file names, apart from those outside of the table.

    Keys are relative to the table. Lance's own indexes, such as the MemWAL index, have no files
    that their entry names. Raises CorruptDataError and NewerFormatError as
    :func:`read_index_section`.
    """
    message = _parse_manifest(manifest, name)
    return [file for file, base_id in _files(message, manifest, name) if base_id is None]


@dataclass(frozen=True, slots=True)
class BasePath:
    """Folder outside of a table with some of its files."""

    uri: str  # or an absolute path
    is_table: bool  # whether it is a table, with ``data`` below it, or the folder of the files

    def key_of(self, file: NamedFile) -> str:
        """Return the key of a file below the folder; ``file`` has that in a table."""
        return file.key if self.is_table else file.key.partition("/")[2]


def external_files(manifest: bytes) -> list[tuple[NamedFile, BasePath]]:
    """Return every file outside of the table that a manifest file names, and where it is.

    Each has the key that it would have in the table. Raises as :func:`named_files`, and
    CorruptDataError if a file is nowhere.
    """
    message = _parse_manifest(manifest, _MANIFEST)
    bases = {base.id: BasePath(base.path, base.is_dataset_root) for base in message.base_paths}
    files = [(file, n) for file, n in _files(message, manifest, _MANIFEST) if n is not None]
    unknown = {number for _, number in files} - bases.keys()
    if unknown:
        raise CorruptDataError(f"{_MANIFEST} lacks the base path {min(unknown)} of some files")
    return [(file, bases[number]) for file, number in files]


def without_base_paths(manifest: bytes) -> bytes:
    """Return a manifest file that names all files as those of the table itself.

    Blobs outside of Lance's files stay where they are: folders that their addresses begin at are
    still named.
    """
    message = _parse_manifest(manifest, _MANIFEST)
    if not message.base_paths:
        return manifest
    indexes = _index_entries(message, manifest, _MANIFEST)
    for fragment in message.fragments:
        for file in data_files(fragment):
            file.ClearField("base_id")
        if fragment.HasField("deletion_file"):
            fragment.deletion_file.ClearField("base_id")
    for entry in indexes:
        entry.ClearField("base_id")
    has_blobs = any(_BLOB in field for field in message.fields)
    kept = [base for base in message.base_paths if has_blobs and not base.is_dataset_root]
    del message.base_paths[:]
    message.base_paths.extend(kept)
    if not kept:
        message.reader_feature_flags &= ~BASE_PATHS
        message.writer_feature_flags &= ~BASE_PATHS
    return _with_indexes(manifest, message, indexes)


def external_segments(manifest: bytes) -> frozenset[UUID]:
    """Return the ids of the index segments whose files are outside of the table, by a manifest."""
    entries = _index_entries(_parse_manifest(manifest, _MANIFEST), manifest, _MANIFEST)
    return frozenset(
        parse_uuid(entry.uuid.uuid, name=_MANIFEST)
        for entry in entries
        if entry.HasField("base_id")
    )


def with_own_segments(manifest: bytes, own: Collection[UUID]) -> bytes:
    """Return a manifest file by which the files of some index segments are in the table itself."""
    message = _parse_manifest(manifest, _MANIFEST)
    indexes = _index_entries(message, manifest, _MANIFEST)
    for entry in indexes:
        if parse_uuid(entry.uuid.uuid, name=_MANIFEST) in own:
            entry.ClearField("base_id")
    return _with_indexes(manifest, message, indexes)


def with_mem_wal_details(manifest: bytes, details: bytes, index_id: UUID) -> bytes:
    """Return a manifest file with other details, and another id, of its one MemWAL index."""
    message = _parse_manifest(manifest, _MANIFEST)
    indexes = _index_entries(message, manifest, _MANIFEST)
    (entry,) = (entry for entry in indexes if entry.name == MEM_WAL_INDEX_NAME)
    entry.uuid.uuid, entry.index_details.value = index_id.bytes, details
    return _with_indexes(manifest, message, indexes)


def _with_indexes(
    manifest: bytes, message: lance_manifest_pb2.Manifest, indexes: list[_Entry]
) -> bytes:
    position, major, minor, magic = _FOOTER.unpack_from(manifest, len(manifest) - _FOOTER.size)
    # Other messages before the manifest stay where they are.
    parts = [manifest[:position]]
    if message.HasField("index_section"):
        message.index_section = position
        section = lance_manifest_pb2.IndexSection(indices=indexes).SerializeToString()
        parts.append(_LENGTH.pack(len(section)) + section)
    data = message.SerializeToString()
    footer = _FOOTER.pack(sum(map(len, parts)), major, minor, magic)
    return b"".join((*parts, _LENGTH.pack(len(data)), data, footer))


@dataclass(frozen=True, slots=True)
class NewFile:
    """Data file of a new data set, which is a fragment by itself."""

    rows: int
    path: str  # below ``data``
    size: int  # bytes
    version: tuple[int, int]  # of the format of the file
    columns: tuple[tuple[int, int], ...]  # field id, and column of the file or -1, of each field


def first_manifest(
    fields: Iterable[bytes],
    metadata: Mapping[str, bytes],
    files: Sequence[NewFile],
    *,
    storage_version: str,
    lance_version: str,
) -> bytes:
    """Return the manifest file of the first version of a data set, as Lance's own commit stores it.

    It names no transaction, which only a commit that follows another one reads. ``fields`` are
    serialized columns, parents before children.
    """
    fragments = [
        lance_manifest_pb2.DataFragment(
            id=number,
            files=[
                lance_manifest_pb2.DataFile(
                    path=file.path,
                    fields=[field for field, _ in file.columns],
                    column_indices=[column for _, column in file.columns],
                    file_major_version=file.version[0],
                    file_minor_version=file.version[1],
                    file_size_bytes=file.size,
                )
            ],
            physical_rows=file.rows,
        )
        for number, file in enumerate(files)
    ]
    seconds, nanos = divmod(time.time_ns(), 10**9)
    writer = lance_manifest_pb2.WriterVersion(library="lance", version=lance_version)
    message = lance_manifest_pb2.Manifest(
        fields=fields,
        schema_metadata=[
            lance_manifest_pb2.MetadataEntry(key=key, value=value).SerializeToString()
            for key, value in metadata.items()
        ],
        fragments=fragments,
        version=1,
        timestamp=Timestamp(seconds=seconds, nanos=nanos).SerializeToString(),
        max_fragment_id=len(fragments) - 1,
        writer_version=writer.SerializeToString(),
        data_format=lance_manifest_pb2.DataStorageFormat(
            file_format="lance", version=storage_version
        ),
    )
    data = message.SerializeToString()
    return b"".join((_LENGTH.pack(len(data)), data, _FOOTER.pack(0, *_MANIFEST_FORMAT, MAGIC)))


def _files(
    message: lance_manifest_pb2.Manifest, manifest: bytes, name: str
) -> Iterator[tuple[NamedFile, int | None]]:
    """Yield every file that a manifest names, with the id of the base path where it is, if any."""
    entries = _index_entries(message, manifest, name)
    check_fields(name, message, *entries)
    has_blobs = any(_BLOB in field for field in message.fields)
    for fragment in message.fragments:
        for file in data_files(fragment):
            key, base_id = f"data/{file.path}", _base_id(file)
            yield NamedFile(key, FileKind.LANCE, size=file.file_size_bytes or None), base_id
            if has_blobs:
                folder = file.path.rpartition("/")[2].removesuffix(".lance")
                yield NamedFile(f"data/{folder}", FileKind.BLOBS), base_id
        if fragment.HasField("deletion_file"):
            deletions = fragment.deletion_file
            yield named_deletions(fragment.id, deletions), _base_id(deletions)
        for path in _external_paths(fragment):
            yield NamedFile(path, FileKind.PLAIN), None
    if message.transaction_file:
        size = None
        if message.HasField("transaction_section"):
            size = len(_message_at(manifest, message.transaction_section, name))
        key = f"_transactions/{message.transaction_file}"
        yield NamedFile(key, FileKind.PLAIN, size=size), None
    for entry in entries:
        if not entry.name.startswith(SYSTEM_INDEX_PREFIX):
            for segment_file in _segment_files(entry, name):
                yield segment_file, _base_id(entry)


def _base_id(part: _Located) -> int | None:
    return part.base_id if part.HasField("base_id") else None


def _segment_files(entry: _Entry, name: str) -> list[NamedFile]:
    index_id = parse_uuid(entry.uuid.uuid, name=name)
    for file in entry.files:
        _check_name(file.path, name)
    if not entry.files and entry.fragment_bitmap != _NO_FRAGMENTS:
        # Of a Lance that did not state them. A vector index that was never trained has none.
        folder = index_file_key(index_id, "").rstrip("/")
        return [NamedFile(folder, FileKind.SEGMENT, index=entry.name)]
    return [
        NamedFile(
            index_file_key(index_id, file.path),
            FileKind.LANCE,
            size=file.size_bytes or None,
            index=entry.name,
        )
        for file in entry.files
    ]


@dataclass(frozen=True, slots=True)
class Transaction:
    """How a version was made of the one before it, as far as rows matter."""

    operation: str | None  # append, update, rewrite or restore; None for another
    # Of a compaction: fragments that were replaced, and those that have their live rows in order.
    moved: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


def transaction_in(manifest: bytes) -> bytes | str | None:
    """Return the transaction of a manifest file, else the key of its file; None without one."""
    message = _parse_manifest(manifest, _MANIFEST)
    if message.HasField("transaction_section"):
        return _message_at(manifest, message.transaction_section, _MANIFEST)
    return f"_transactions/{message.transaction_file}" if message.transaction_file else None


def decode_transaction(data: bytes) -> Transaction:
    """Decode a transaction."""
    message = parse_message(lance_manifest_pb2.Transaction, data, name="a transaction")
    return Transaction(
        message.WhichOneof("operation"),
        tuple(
            (
                tuple(int(fragment.id) for fragment in group.old_fragments),
                tuple(int(fragment.id) for fragment in group.new_fragments),
            )
            for group in message.rewrite.groups
        ),
    )


def data_file_names(manifest: bytes) -> list[str]:
    """Return the name of every data file that a table's manifest file names."""
    fragments = _parse_manifest(manifest, _MANIFEST).fragments
    return [file.path for fragment in fragments for file in data_files(fragment)]


def has_dictionary_fields(manifest: bytes) -> bool:
    """Return whether a column, or a part of one, is a dictionary in a table's manifest file."""
    if _DICTIONARY not in manifest:
        return False
    schema = parse_message(lance_schema_pb2.Schema, manifest_message(manifest), name=_MANIFEST)
    return any(_DICTIONARY.decode() in field.logical_type for field in schema.fields)


def manifest_message(manifest: bytes, *, name: str = _MANIFEST) -> bytes:
    """Return the message of a manifest file, which Lance opens as a data set.

    Raises CorruptDataError as :func:`read_index_section`.
    """
    if len(manifest) < _FOOTER.size:
        raise CorruptDataError(
            f"{name} has {len(manifest)} bytes, which is no Lance manifest; it may not have been "
            "written to its end"
        )
    position, _, _, magic = _FOOTER.unpack_from(manifest, len(manifest) - _FOOTER.size)
    if magic != MAGIC:
        raise CorruptDataError(
            f"{name} ends in {magic!r} instead of {MAGIC!r}; it may not have been written to its "
            "end"
        )
    return _message_at(manifest, position, name)


def as_version(manifest: bytes, version: int) -> bytes:
    """Return the message of a manifest file with another version number."""
    message = _parse_manifest(manifest, _MANIFEST)
    message.version = version
    return message.SerializeToString(deterministic=True)


def replace_field_id(field: bytes, field_id: int) -> bytes:
    """Return a serialized column with another field id."""
    message = parse_message(lance_schema_pb2.Field, field, name="a column of a Lance schema")
    message.id = field_id
    return message.SerializeToString(deterministic=True)


def make_nullable(field: bytes) -> bytes:
    """Return a serialized column as nullable."""
    message = parse_message(lance_schema_pb2.Field, field, name="a column of a Lance schema")
    message.nullable = True
    return message.SerializeToString(deterministic=True)


def has_narrow_dictionaries(text: str) -> bool:
    """Return whether a schema, given as its ``repr``, has dictionaries with narrow indices.

    Indices of 8 or 16 bits: see :func:`plain_manifest`.
    """
    return '"dict:' in text and _NARROW_DICTIONARY.search(text) is not None


def plain_manifest(manifest: bytes) -> bytes | None:
    """Return a manifest's message with columns of plain values instead of narrow dictionaries.

    Lance numbers the values of a dictionary anew where it joins rows, and does not check that the
    indices can hold the numbers. A column of the dictionary's values reads the same files, since
    they tell how they are encoded. Files of a format before 2.1 do not, and Lance would read other
    values: None if the manifest names one of these.
    """
    files = parse_message(lance_manifest_pb2.Manifest, manifest, name=_MANIFEST).fragments
    versions = (
        (file.file_major_version, file.file_minor_version) for part in files for file in part.files
    )
    if any(version < _TELLS_ENCODING for version in versions):
        return None
    message = parse_message(lance_schema_pb2.Schema, manifest, name=_MANIFEST)
    for field in message.fields:
        narrow = _NARROW_DICTIONARY.fullmatch(f'LogicalType("{field.logical_type}")')
        if narrow is not None:
            field.logical_type = narrow["values"]
            is_bytes = narrow["values"].endswith(("string", "binary"))
            field.encoding = _VAR_BINARY if is_bytes else _PLAIN
            field.ClearField("dictionary")
    return message.SerializeToString(deterministic=True)


def _parse_manifest(manifest: bytes, name: str) -> lance_manifest_pb2.Manifest:
    """Parse the message of a manifest file; NewerFormatError if it uses an unknown feature."""
    data = manifest_message(manifest, name=name)
    message = parse_message(lance_manifest_pb2.Manifest, data, name=name)
    check_features(message, name)
    _check_inside(message, name)
    return message


def _check_inside(message: lance_manifest_pb2.Manifest, name: str) -> None:
    """Refuse names of files that lead out of the folder where files of their kind are."""
    for fragment in message.fragments:
        for file in data_files(fragment):
            _check_name(file.path, name)
        for path in _external_paths(fragment):
            _check_name(path, name)
    _check_name(message.transaction_file, name)


def _external_paths(fragment: lance_manifest_pb2.DataFragment) -> list[str]:
    """Return the paths of the files with row ids and versions of rows."""
    ids, updated = fragment.external_row_ids, fragment.external_last_updated_at_versions
    return [p.path for p in (ids, updated, fragment.external_created_at_versions) if p.path]


def _check_name(path: str, name: str) -> None:
    if "/" in path and (path.startswith("/") or ".." in path.split("/")):
        raise CorruptDataError(
            f"{name} names the file {path!r}, which would be outside of its folder; keep the "
            "manifest and find out who wrote it"
        )


def _message_at(manifest: bytes, position: int, name: str) -> bytes:
    start = position + _LENGTH.size
    if start > len(manifest):
        raise CorruptDataError(
            f"{name} claims that a message starts at byte {position} of {len(manifest)}; keep the "
            "object and look at its bytes"
        )
    (length,) = _LENGTH.unpack_from(manifest, position)
    if start + length > len(manifest):
        raise CorruptDataError(
            f"{name} claims that {length} bytes follow byte {start} of {len(manifest)}; keep the "
            "object and look at its bytes"
        )
    return manifest[start : start + length]


def _index_entries(
    message: lance_manifest_pb2.Manifest, manifest: bytes, name: str
) -> list[_Entry]:
    if not message.HasField("index_section"):
        return []
    data = _message_at(manifest, message.index_section, name)
    section = parse_message(lance_manifest_pb2.IndexSection, data, name=name)
    return list(section.indices)


def _entry_from(entry: _Entry, name: str) -> IndexEntry:
    return IndexEntry(
        parse_uuid(entry.uuid.uuid, name=name),
        name=entry.name,
        fields=tuple(entry.fields),
        dataset_version=entry.dataset_version,
        index_version=entry.index_version,
        details=entry.index_details.value,
        fragment_bitmap=entry.fragment_bitmap if entry.HasField("fragment_bitmap") else None,
    )
