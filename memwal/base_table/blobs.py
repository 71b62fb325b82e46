"""Blob columns: the forms that their values have.

Measured with pylance 14.0.2, for a column marked ``lance-encoding:blob`` and one of type
``lance.blob.v2``:

=====================  ==================================  =======================================
where                  ``lance-encoding:blob``             ``lance.blob.v2``
=====================  ==================================  =======================================
write, `merge_insert`  ``large_binary``                    ``BlobType``: data or uri, and a range
entry of the log       the same                            struct ``kind, data, uri, blob_id,
                                                           blob_size, position`` marked
                                                           ``lance.blob.v2``. Kind 0 has its bytes
                                                           in the entry; kinds 1 and 2 (packed,
                                                           dedicated) are in files of the future
                                                           generation, which the entry names
                                                           (``mem_wal_target_*``); kind 3 is
                                                           external. A replay takes kind 0 for
                                                           blobs of any size.
generation             bytes in the data file              bytes in the data file up to 64 KiB,
                                                           above in a folder beside it (``.blob``)
scan                   struct ``position, size``           struct ``kind, position, size, blob_id,
                                                           blob_uri``
scan, ``all_binary``   ``large_binary``                    ``large_binary``, external ones too
``take``               as a scan                           as a scan
``take_blobs``         a file for each row, None for null  the same
``merge_insert``       works                               no option for external blobs
=====================  ==================================  =======================================

In memory, rows have the form that is written. Readers give that of Lance's scan, the *description*;
a row that is in no file yet has position 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Literal, get_args

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import InvalidInputError
from memwal.format.paths import BLOB_SUFFIX
from memwal.format.values import BLOB_TYPE, single_array
from memwal.storage.location import TableLocation
from memwal.util.arrays import Mask

BlobHandling = Literal["all_binary", "blobs_descriptions"]
"""Form in which a scan returns blob columns, with Lance's names."""

EXTERNAL: Final = 3
"""Kind of a blob that is at an address outside of Lance's files."""

_BATCH_BYTES: Final = 32 << 20
# Of a blob that is in a file with others, and of one that has a file of its own.
_FILE_KINDS: Final = pa.array([1, 2], pa.uint8())
_FILE: Final = ["fragment", "number"]
# A number of Python would be compared as a signed one.
_ZERO: Final = pa.scalar(0, pa.uint64())
_ROW_ADDRESS: Final = "_rowaddr"
_MARK: Final = b"lance-encoding:blob"
_PACKED: Final = {b"lance-encoding:packed": b"true", _MARK: b"true"}
_DESCRIPTION: Final = pa.struct([("position", pa.uint64()), ("size", pa.uint64())])
_DESCRIPTION_V2: Final = pa.struct(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (
            ("kind", pa.uint8()),
            ("position", pa.uint64()),
            ("size", pa.uint64()),
            ("blob_id", pa.uint32()),
            ("blob_uri", pa.string()),
        )
    ]
)


def is_blob(field: pa.Field) -> bool:
    """Return whether a column has blobs, of either kind."""
    return (field.metadata or {}).get(_MARK) == b"true" or is_blob_v2(field)


def is_blob_v2(field: pa.Field) -> bool:
    """Return whether a column has blobs of version 2."""
    return getattr(field.type, "extension_name", None) == BLOB_TYPE


def blob_names(schema: pa.Schema) -> list[str]:
    """Return the names of the blob columns."""
    return [field.name for field in schema if is_blob(field)]


def read_schema(schema: pa.Schema, handling: BlobHandling | None = None) -> pa.Schema:
    """Return the schema that a scan of some columns gives."""
    if handling is not None and handling not in get_args(BlobHandling):
        raise InvalidInputError(
            f"blob_handling is {handling!r}; give one of {', '.join(get_args(BlobHandling))}"
        )
    form = _in_bytes if handling == "all_binary" else _described
    return pa.schema([form(f) if is_blob(f) else f for f in schema], schema.metadata)


def _described(field: pa.Field) -> pa.Field:
    if is_blob_v2(field):
        return pa.field(field.name, _DESCRIPTION_V2, field.nullable, _PACKED)
    return field.with_type(_DESCRIPTION)


def _in_bytes(field: pa.Field) -> pa.Field:
    return field.with_type(pa.large_binary())


def describe(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return the descriptions of blobs in memory."""
    zeros = pa.array(np.zeros(len(values), np.uint64))
    if not is_blob_v2(field):
        parts = [zeros, pc.coalesce(_size(values), zeros)]
        return pa.StructArray.from_arrays(parts, fields=[*_DESCRIPTION], mask=values.is_null())
    data, uri, position, size = blob_parts(values)
    parts = [
        pc.if_else(uri.is_valid(), EXTERNAL, 0).cast(pa.uint8()),
        pc.coalesce(position, zeros),
        pc.coalesce(size, _size(data), zeros),
        zeros.cast(pa.uint32()),
        pc.fill_null(uri, ""),
    ]
    return pa.StructArray.from_arrays(parts, fields=[*_DESCRIPTION_V2], mask=values.is_null())


def has_external(values: pa.Array, field: pa.Field) -> bool:
    """Return whether any of some blobs in memory is at an address."""
    return is_blob_v2(field) and len(blob_parts(values)[1]) > blob_parts(values)[1].null_count


def external_uris(rows: pa.Table, column: str, dataset: lance.LanceDataset) -> pa.Array:
    """Return the addresses of the external blobs of rows of a data set; null for other blobs.

    The rows are those of a scan or, in memory, as they are written.
    """
    blobs = single_array(rows.column(column))
    if is_blob_v2(rows.schema.field(column)):
        return blob_parts(blobs)[1]
    if blobs.type != _DESCRIPTION_V2:
        return pa.nulls(len(blobs), pa.string())
    return _where(pc.equal(blobs.field("kind"), EXTERNAL), _addresses(blobs, dataset))


def own_bytes(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return the bytes of blobs in memory, none of which is external."""
    return blob_parts(values)[0] if is_blob_v2(field) else values


def with_values(dataset: lance.LanceDataset, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of a scan with blobs in the form that is written, in the columns of ``schema``.

    ``rows`` have their address. The bytes of each blob in Lance's files are read once, into memory;
    external blobs are not read.
    """
    addresses = rows.column(_ROW_ADDRESS).to_numpy()
    columns = []
    for field in schema:
        column = rows.column(field.name)
        if is_blob(field):
            descriptions = single_array(column)
            is_stored = _is_in_files(descriptions)
            found = dataset.read_blobs(
                field.name, addresses=addresses[is_stored].tolist(), preserve_order=True
            )
            data = pa.array([value for _, value in found], pa.large_binary())
            if not is_stored.all():
                data = data.take(pa.array(np.cumsum(is_stored) - 1, mask=~is_stored))
            column = _as_written(descriptions, data, field, dataset)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def batches_with_values(
    dataset: lance.LanceDataset, rows: pa.Table, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield rows as :func:`with_values` does, in batches of about 32 MiB or of one row."""
    total = np.zeros(rows.num_rows, np.uint64)
    for name in blob_names(schema):
        descriptions = single_array(rows.column(name))
        size = pc.fill_null(descriptions.field("size"), 0).to_numpy()
        total += np.where(_is_in_files(descriptions), size, 0)
    cuts = np.flatnonzero(np.diff(np.cumsum(total) // _BATCH_BYTES)) + 1
    for start, stop in itertools.pairwise([0, *cuts.tolist(), rows.num_rows]):
        part = with_values(dataset, rows.slice(start, stop - start), schema)
        yield from part.combine_chunks().to_batches()


def needed_blob_files(
    dataset: lance.LanceDataset, *, known: Collection[str] = frozenset()
) -> dict[str, int]:
    """Return the files of blobs by key in the data set, and the bytes that each must have.

    Files of blobs beside data files with a name in ``known`` are left out. One scan of the
    addresses of each column with blobs, without the blobs. Fragments with data overlay files are
    left out: which of their files an address belongs to is not known here.
    """
    needed: dict[str, int] = {}
    ids = {field.name(): field.id() for field in dataset.lance_schema.fields()}
    for column in (field.name for field in dataset.schema if is_blob_v2(field)):
        files = {
            int(part.fragment_id): file.path
            for part in dataset.get_fragments()
            for file in part.metadata.files
            if ids[column] in file.fields and file.path not in known and not part.metadata.overlays
        }
        if not files:
            continue
        parts = [dataset.get_fragment(number) for number in files]
        for fragment, number, end in _blob_ends(dataset, column, parts):
            # Lance writes the bits of the number from the last to the first.
            folder = f"data/{files[fragment].removesuffix('.lance')}"
            needed[f"{folder}/{f'{number:032b}'[::-1]}{BLOB_SUFFIX}"] = end
    return needed


def _blob_ends(
    dataset: lance.LanceDataset, column: str, fragments: Sequence[lance.LanceFragment]
) -> Iterator[tuple[int, int, int]]:
    """Yield the fragment and the number of each file of blobs, and the bytes that it must have."""
    scanner = dataset.scanner(columns=[column], with_row_address=True, fragments=fragments)
    ends = []
    for batch in scanner.to_batches():
        blob = batch.column(column)
        rows = pa.table(
            {
                "fragment": pc.shift_right(batch[_ROW_ADDRESS], pa.scalar(32, pa.uint64())),
                "number": blob.field("blob_id"),
                "end": pc.add(blob.field("position"), blob.field("size")),
            }
        )
        is_outside = pc.is_in(blob.field("kind"), value_set=_FILE_KINDS)
        rows = rows.filter(pc.and_(is_outside, blob.is_valid()))
        ends.append(rows.group_by(_FILE).aggregate([("end", "max")]))
    if ends:
        merged = pa.concat_tables(ends).group_by(_FILE).aggregate([("end_max", "max")])
        merged = merged.select([*_FILE, "end_max_max"])
        yield from zip(*(column.to_pylist() for column in merged.columns), strict=True)


def write_options(schema: pa.Schema) -> dict[str, Any]:
    """Return the options of Lance for a write of rows whose external blobs were accepted."""
    return {"allow_external_blob_outside_bases": True} if any(map(is_blob_v2, schema)) else {}


def find_invalid_blob(location: TableLocation | None, values: pa.Array) -> str | None:
    """Return the first fault of blobs of version 2; None if they have none.

    With a ``location``, an external blob must be where files of the table may be.
    """
    data, uri, position, size = blob_parts(values)
    is_external = uri.is_valid()
    if pc.any(pc.and_(values.is_valid(), pc.equal(data.is_valid(), is_external))).as_py():
        return "a blob that has not exactly one of data and uri"
    is_range = position.is_valid()
    wrong = pc.or_(pc.xor(is_range, size.is_valid()), pc.and_not(is_range, is_external))
    if pc.any(wrong).as_py() or pc.any(pc.equal(size, _ZERO)).as_py():
        return "a blob with half a range, an empty one, or one of bytes that are given"
    try:
        addresses = pc.unique(uri.drop_null()).to_pylist()
    except UnicodeDecodeError:
        return "an address that is not valid UTF-8"
    for address in addresses:
        if "://" not in address:
            return "a blob whose address is not absolute, such as file:///folder/name"
        if location is not None and not location.allows(address):
            return (
                "a blob outside of the table; if it may be read, allow its folder: "
                "memwal.open(uri, allow_external=[...]), the policy key allow_external, or the "
                "storage option memwal_allow_external"
            )
    return None


def _is_in_files(descriptions: pa.Array) -> Mask:
    present = descriptions.is_valid()
    if descriptions.type != _DESCRIPTION:
        present = pc.and_(present, pc.not_equal(descriptions.field("kind"), EXTERNAL))
    return np.asarray(present.to_numpy(zero_copy_only=False), np.bool_)


def _as_written(
    descriptions: pa.Array, data: pa.Array, field: pa.Field, dataset: lance.LanceDataset
) -> pa.Array:
    if not is_blob_v2(field):
        return data
    is_external = pc.equal(descriptions.field("kind"), EXTERNAL)
    size = descriptions.field("size")
    # An external blob without a range is all of the file.
    is_range = pc.and_(is_external, pc.greater(size, _ZERO))
    parts = [
        data,
        _where(is_external, _addresses(descriptions, dataset)),
        _where(is_range, descriptions.field("position")),
        _where(is_range, size),
    ]
    # A column that Lance has converted has no place for ranges, and no values with one.
    fields = [*field.type.storage_type]
    storage = pa.StructArray.from_arrays(
        parts[: len(fields)], fields=fields, mask=descriptions.is_null()
    )
    return pa.ExtensionArray.from_storage(field.type, storage)


def _addresses(descriptions: pa.Array, dataset: lance.LanceDataset) -> pa.Array:
    """Return absolute addresses: those below a registered base are stored without it."""
    addresses = descriptions.field("blob_uri")
    for number, base in dataset.base_paths().items():
        root = base.path if "://" in base.path else f"file://{base.path}"
        joined = pc.binary_join_element_wise(root.rstrip("/"), addresses, "/")
        addresses = pc.if_else(pc.equal(descriptions.field("blob_id"), number), joined, addresses)
    return addresses


def _where(mask: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(mask, values, pa.scalar(None, values.type))


def _size(data: pa.Array) -> pa.Array:
    return pc.binary_length(data).cast(pa.uint64())


def blob_parts(values: pa.ExtensionArray) -> list[pa.Array]:
    """Return data, address, position and size of blobs of version 2; null where the blob is."""
    parts: list[pa.Array] = values.storage.flatten()
    return parts if len(parts) > 2 else [*parts, *(pa.nulls(len(values), pa.uint64()),) * 2]
