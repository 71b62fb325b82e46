"""Files of a Lance data set: checks that one was written whole, and content that pylance hides.

Lance drops some errors of its writes, and a file is then shorter than its writer counted, mostly
without a single byte. Every format of Lance's has its directory at the end of the file, so that a
file whose end is sound was written to its end.

Files and schemas are checked before Lance passes them to Arrow. Names and types go through Arrow's
C interface, where a zero byte ends a text. At a zero byte within a name Lance ends the whole
process, which Python cannot catch.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.errors import CorruptDataError
from memwal.format._proto import lance_index_pb2, lance_manifest_pb2, lance_schema_pb2
from memwal.format.memwal_index import parse_message

MAGIC: Final = b"LANC"
"""The last bytes of manifests, data files and index files."""

# Where columns, their directory and that of the buffers start, how many of these and of columns
# there are, major and minor version, magic.
FILE_FOOTER: Final = struct.Struct("<QQQIIHH4s")
DIRECTORY_ENTRY: Final = struct.Struct("<QQ")

# Position of the metadata, major and minor version, magic.
_LEGACY_FOOTER: Final = struct.Struct("<QHH4s")
_LEGACY_VERSIONS: Final = ((0, 0), (0, 1), (0, 2))

# Portable roaring format: number of containers, then key and cardinality of each.
_ROARING: Final = 12346
_ROARING_WITH_RUNS: Final = 12347
_MAX_ARRAY: Final = 4096
_BITMAP_BYTES: Final = 8192
_OFFSETS_FROM: Final = 4
# A name or a type with a zero byte in the repr of a schema.
_ZERO_BYTE: Final = re.compile(r'(?:name: |LogicalType\()"(?:[^"\\]|\\[^0])*\\0')
_DTYPES: Final[dict[int, np.dtype[np.number]]] = {
    1: np.dtype("<f2"),
    2: np.dtype("<f4"),
    3: np.dtype("<f8"),
    4: np.dtype("u1"),
}
Numbers = npt.NDArray[np.number]
_DAMAGE: Final = (pa.ArrowException, OSError, ValueError, struct.error)


class FileKind(Enum):
    """Required form of a file."""

    LANCE = "lance"  # a data file, or a file of an index
    DELETED_ROWS = "deleted rows"  # an Arrow file
    DELETED_BITMAP = "deleted bitmap"  # a roaring bitmap
    PLAIN = "plain"  # of another format, whose end cannot be recognised: only its size counts
    SEGMENT = "segment"  # folder of an index segment whose files are not stated
    # Folder of the blobs that are not in a data file itself; there is none without such blobs.
    BLOBS = "blobs"


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that a manifest names."""

    key: str  # below the data set
    kind: FileKind
    _: KW_ONLY
    size: int | None = None  # bytes that the manifest states; None if it does not
    rows: int | None = None  # deleted rows that the manifest states, of a file of them
    index: str | None = None  # name of the index that it belongs to


def end_problem(end: bytes, size: int) -> str | None:
    """Return the problem of a data or index file of ``size`` bytes, or None.

    ``end`` are its last bytes, at least as many as :data:`FILE_FOOTER` has, or all of them.
    """
    if not size:
        return "it is empty"
    if not end.endswith(MAGIC) or size < _LEGACY_FOOTER.size:
        return f"its {size} bytes do not end as those of a Lance file"
    start, major, minor, _ = _LEGACY_FOOTER.unpack_from(end, len(end) - _LEGACY_FOOTER.size)
    if (major, minor) in _LEGACY_VERSIONS:
        sound = start < size - _LEGACY_FOOTER.size
    elif size < FILE_FOOTER.size:
        sound = False
    else:
        footer = FILE_FOOTER.unpack_from(end, len(end) - FILE_FOOTER.size)
        columns, directory, buffers, num_buffers, num_columns, *_ = footer
        sound = (
            columns <= directory
            and directory + num_columns * DIRECTORY_ENTRY.size <= buffers
            and buffers + num_buffers * DIRECTORY_ENTRY.size <= size - FILE_FOOTER.size
        )
    return None if sound else f"the footer of its {size} bytes leads outside of them"


def check_lance_file(data: bytes, *, name: str) -> None:
    """Refuse a file that would end the process inside Lance.

    Raises CorruptDataError if the bytes are not a Lance file, or a column has a zero byte in its
    name or type.
    """
    descriptor = parse_message(
        lance_schema_pb2.FileDescriptor, _first_buffer(data, name), name=name
    )
    for field in descriptor.schema.fields:
        if "\0" in field.name or "\0" in field.logical_type:
            raise _zero_byte_error(name)


def check_lance_schema(text: str, *, name: str) -> None:
    """Refuse a schema, given as its ``repr``, that would end the process inside Lance.

    Raises CorruptDataError if a column has a zero byte in its name or type.
    """
    if "\\0" in text and _ZERO_BYTE.search(text) is not None:
        raise _zero_byte_error(name)


def _first_buffer(data: bytes, name: str) -> bytes:
    start = len(data) - FILE_FOOTER.size
    if start < 0 or not data.endswith(MAGIC):
        raise CorruptDataError(f"{name} ({len(data)} bytes) is no Lance file; it may be cut off")
    _, _, places, *_ = FILE_FOOTER.unpack_from(data, start)
    if places + DIRECTORY_ENTRY.size > len(data):
        raise CorruptDataError(f"{name} leads to byte {places} of {len(data)}; it is damaged")
    position, size = DIRECTORY_ENTRY.unpack_from(data, places)
    return data[position : position + size]


def _zero_byte_error(name: str) -> CorruptDataError:
    return CorruptDataError(
        f"{name} has a column with a zero byte in its name or type, which Lance cannot read; it is "
        "damaged: restore it, or whatever it belongs to, from a backup"
    )


@dataclass(frozen=True, slots=True)
class DeletionFile:
    """Deletion file of a fragment that a manifest is to name."""

    kind: FileKind  # of deleted rows
    read_version: int
    id: int
    rows: int  # that are deleted

    def key(self, fragment: int) -> str:
        """Return the key of the file, below the data set."""
        suffix = "arrow" if self.kind is FileKind.DELETED_ROWS else "bin"
        return f"_deletions/{fragment}-{self.read_version}-{self.id}.{suffix}"


def with_deletion_files(manifest: bytes, files: Mapping[int, DeletionFile]) -> bytes:
    """Return a manifest's message with other deletion files of some fragments, by their ids."""
    message = parse_message(lance_manifest_pb2.Manifest, manifest, name="the table's manifest")
    kinds = lance_manifest_pb2.DeletionFile
    for fragment in message.fragments:
        file = files.get(fragment.id)
        if file is not None:
            is_rows = file.kind is FileKind.DELETED_ROWS
            fragment.deletion_file.CopyFrom(
                kinds(
                    file_type=kinds.ARROW if is_rows else kinds.BITMAP,
                    read_version=file.read_version,
                    id=file.id,
                    num_deleted_rows=file.rows,
                )
            )
    return message.SerializeToString(deterministic=True)


def encode_deleted_rows(rows: int) -> bytes:
    """Encode a deletion file of all ``rows`` of a fragment."""
    schema = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(pa.table([pa.array(range(rows), pa.uint32())], schema=schema))
    return bytes(sink.getvalue())


def deletion_problem(data: bytes, file: NamedFile) -> str | None:
    """Return the problem of the content of a file of deleted rows, or None."""
    if not data:
        return "it is empty"
    try:
        rows = sum(map(len, _deleted_parts(data, file.kind)))
    except _DAMAGE:
        return f"its {len(data)} bytes are no list of deleted rows; it may be cut off"
    if file.rows and rows != file.rows:
        return f"it has {rows} deleted rows instead of {file.rows}"
    return None


def deleted_rows(data: bytes, kind: FileKind) -> npt.NDArray[np.uint32]:
    """Decode a file of deleted rows to their positions, ascending; CorruptDataError if damaged."""
    try:
        return np.sort(np.concatenate([np.empty(0, np.uint32), *_deleted_parts(data, kind)]))
    except _DAMAGE as error:
        raise CorruptDataError(f"{len(data)} bytes are no list of deleted rows") from error


def _deleted_parts(data: bytes, kind: FileKind) -> Iterator[npt.NDArray[np.uint32]]:
    """Decode a file of deleted rows part by part: some are small, and name very many rows."""
    if kind is FileKind.DELETED_ROWS:
        rows = pa.ipc.open_file(data).read_all().column(0)
        yield rows.to_numpy().astype(np.uint32, copy=False)
    else:
        yield from _containers(data)


def _containers(data: bytes) -> Iterator[npt.NDArray[np.uint32]]:
    """Decode the containers of a roaring bitmap; ValueError unless it has its length."""
    cookie, count = struct.unpack_from("<II", data)
    with_runs = cookie & 0xFFFF == _ROARING_WITH_RUNS
    start = 8
    if with_runs:
        count = (cookie >> 16) + 1
        start = 4 + (count + 7) // 8
    elif cookie != _ROARING:
        raise ValueError("another format")
    heads = np.frombuffer(data, "<u2", 2 * count, start).reshape(-1, 2)
    # A list of the containers' offsets comes first, unless there are few of them with runs.
    end = start + 4 * count if with_runs and count < _OFFSETS_FROM else start + 8 * count
    for number, (key, last) in enumerate(heads.tolist()):
        if with_runs and data[4 + number // 8] >> number % 8 & 1:
            size = 4 * int.from_bytes(data[end : end + 2], "little")
            runs = np.frombuffer(data, "<u2", size // 2, end + 2).astype(np.int64).reshape(-1, 2)
            lengths = runs[:, 1] + 1
            if lengths.sum() > 1 << 16:
                raise ValueError("more rows than a container has")
            before = np.repeat(np.cumsum(lengths) - lengths, lengths)
            values = np.repeat(runs[:, 0], lengths) + np.arange(len(before)) - before
            end += 2 + size
        elif last < _MAX_ARRAY:
            values = np.frombuffer(data, "<u2", last + 1, end)
            end += 2 * (last + 1)
        else:
            bits = np.frombuffer(data, np.uint8, _BITMAP_BYTES, end)
            values = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
            end += _BITMAP_BYTES
        yield values.astype(np.uint32) + np.uint32(key << 16)
    if end != len(data):
        raise ValueError("another length")


@dataclass(frozen=True, slots=True)
class FragmentState:
    """State of a fragment in a version. Equal states have the same rows with the same ids."""

    files: bytes  # its message without the deletion file: all rows, deleted ones too
    deletions: NamedFile | None  # None without deleted rows, or if the file is elsewhere


def fragment_states(manifest: bytes) -> dict[int, FragmentState]:
    """Return the states of the fragments of a manifest's message, by their ids and in order."""
    message = parse_message(lance_manifest_pb2.Manifest, manifest, name="the table's manifest")
    states = {}
    for fragment in message.fragments:
        deletions = None
        if fragment.HasField("deletion_file") and not fragment.deletion_file.HasField("base_id"):
            deletions = named_deletions(fragment.id, fragment.deletion_file)
            fragment.ClearField("deletion_file")
        files = fragment.SerializeToString(deterministic=True)
        states[int(fragment.id)] = FragmentState(files, deletions)
    return states


def fragment_numbers(manifest: bytes, beside: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return a row for each fragment of a manifest's message.

    Its numbers are the id, the rows, those of them that are deleted, the stored bytes, the overlay
    files, and the files whose writer recorded no size. ``beside`` are the bytes beside each data
    file, by its name.
    """
    message = parse_message(lance_manifest_pb2.Manifest, manifest, name="the table's manifest")
    numbers = []
    for fragment in message.fragments:
        stored = unrecorded = 0
        for file in data_files(fragment):
            stored += file.file_size_bytes
            unrecorded += not file.file_size_bytes
            if beside:
                stored += beside.get(file.path, 0)
        deleted = fragment.deletion_file.num_deleted_rows
        overlays = len(fragment.overlays)
        numbers.append((fragment.id, fragment.physical_rows, deleted, stored, overlays, unrecorded))
    return np.array(numbers, np.int64).reshape(-1, 6)


def data_files(fragment: lance_manifest_pb2.DataFragment) -> list[lance_manifest_pb2.DataFile]:
    """Return the files with values of a fragment: also its overlays, which hold newer values."""
    files = list(fragment.files)
    if fragment.overlays:
        files += (overlay.data_file for overlay in fragment.overlays)
    return files


def named_deletions(fragment: int, file: lance_manifest_pb2.DeletionFile) -> NamedFile:
    """Return the deletion file of a fragment, by its message in a manifest."""
    is_arrow = file.file_type == lance_manifest_pb2.DeletionFile.ARROW
    suffix = "arrow" if is_arrow else "bin"
    return NamedFile(
        f"_deletions/{fragment}-{file.read_version}-{file.id}.{suffix}",
        FileKind.DELETED_ROWS if is_arrow else FileKind.DELETED_BITMAP,
        rows=file.num_deleted_rows or None,
    )


def read_codebook(data: bytes, *, name: str) -> Numbers:
    """Decode the codebook of a vector index, one sub-vector after another, in one dimension.

    Raises CorruptDataError if the bytes are not a tensor, or have a type that Lance's vector
    indexes do not use.
    """
    return _tensor_values(parse_message(lance_index_pb2.Tensor, data, name=name), name)


def read_centroids(data: bytes, *, name: str) -> Numbers:
    """Decode the centroids, shape (partitions, dimension), from the inverted file of an index.

    Raises CorruptDataError if the bytes are not an inverted file with centroids.
    """
    tensor = parse_message(lance_index_pb2.InvertedFile, data, name=name).centroids
    numbers = _tensor_values(tensor, name)
    shape = tuple(tensor.shape)
    if len(shape) != 2 or not numbers.size or shape[0] * shape[1] != numbers.size:
        raise CorruptDataError(
            f"{name} has {numbers.size} numbers in the shape {shape}, which are no centroids; "
            "build the index again"
        )
    return numbers.reshape(shape)


def _tensor_values(tensor: lance_index_pb2.Tensor, name: str) -> Numbers:
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None or len(tensor.data) % dtype.itemsize:
        raise CorruptDataError(
            f"{name} holds {len(tensor.data)} bytes of type {tensor.data_type}, which is not an "
            "array of numbers; look at the index it belongs to"
        )
    return np.frombuffer(tensor.data, dtype)
