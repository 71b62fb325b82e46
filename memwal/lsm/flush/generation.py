"""Write stored rows as a generation: a Lance table in its region (spec: Flushed MemTable).

All files go into a folder with a random name that no manifest lists yet. An attempt that dies
leaves only an orphan, which the garbage collector deletes. The bloom filter is written last. After
it, every file is looked at, and dictionaries are decoded, see
:mod:`memwal.base_table.named_files`. If a file was not written whole, the attempt fails, and the
next one writes into another folder; until one succeeds, the rows stay in the log. If a file is
gone, this process was paused for so long that the garbage collector took the folder for an orphan,
and the generation is written again. The fields of the table have the ids of the base table's
fields.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

import lance
import pyarrow as pa
from lance.dataset import LanceOperation
from lance.fragment import FragmentMetadata, LanceFragment, write_fragments
from lance.schema import LanceSchema

from memwal.base_table.blobs import write_options
from memwal.base_table.named_files import (
    BadFile,
    check_new_files,
    decode_dictionaries,
    find_bad_blobs,
    find_bad_files,
    refuse,
)
from memwal.base_table.snapshot import BaseTable
from memwal.boundary.lance_errors import translate_lance_error
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.bloom import FILTER_BYTES
from memwal.format.lance_files import FileKind, NamedFile
from memwal.format.lance_manifest import make_nullable, replace_field_id
from memwal.format.paths import (
    BLOOM_FILTER_NAME,
    PK_INDEX_DIR,
    SIZED_FILTER_NAME,
    TOMBSTONE,
    generation_dir,
    generation_name,
    table_manifest_keys,
)
from memwal.format.region_manifest import FlushedGeneration
from memwal.format.values import VERSIONS_WITHOUT_NULL_STRUCTS
from memwal.inputs.dictionaries import divide_by_values
from memwal.lsm.flush.key_index import NewestKeys, write_key_index
from memwal.lsm.flush.rows import GenerationRows, NewestRowStream, TableRows
from memwal.lsm.indexes.maintained import MaintainedIndex, build_generation_indexes
from memwal.region.rows import stored_schema
from memwal.storage.object_store import ObjectStore
from memwal.util.retry import LostWriteError

if TYPE_CHECKING:
    from lance.lance.schema import LanceField

# One file per generation, whose size the MemTable bounds: a reader opens one file, and takes the
# rows of many keys from one. A limit of 2^32 rows or more makes Lance begin another file with
# each batch.
_MAX_ROWS = (1 << 32) - 1
_MAX_BYTES = 1 << 62

# Earlier file versions cannot store a null struct, and the structs of a deleted row are null.
_OLDEST_VERSION: Final = "2.1"


def write_dataset(base: BaseTable, uri: str, rows: NewestRowStream) -> lance.LanceDataset:
    """Write rows as a new Lance dataset with the field ids of the base table.

    Raises OSError and ValueError of pylance.
    """
    lance_arguments = base.location.lance_arguments()
    stored = stored_schema(base.stored_schema, base.primary_key)
    schema = _schema_with_base_ids(base)
    # Lance numbers the fields of a new dataset in the order of its columns, regardless of the
    # schema. The ids differ only if columns of the base table were dropped or moved; a second
    # commit then sets them.
    written = LanceSchema.from_pyarrow(stored)
    new_id = dict(zip(_field_ids(written.fields()), _field_ids(schema.fields()), strict=True))
    is_numbered = all(old == new for old, new in new_id.items())
    version = base.dataset.data_storage_version
    is_old = version in VERSIONS_WITHOUT_NULL_STRUCTS
    file_arguments = {
        "mode": "create",
        "data_storage_version": _OLDEST_VERSION if is_old else version,
        **lance_arguments,
    }
    limits = {"max_rows_per_file": _MAX_ROWS, "max_bytes_per_file": _MAX_BYTES}
    blob_options = write_options(stored)
    # The first way lists no versions of the new data set. It takes the ids of fields from their
    # metadata, which not all nested fields have.
    is_flat = is_numbered and len(new_id) == len(stored) and not blob_options
    fragments: list[FragmentMetadata] = []
    for part in divide_by_values(rows.reader(), stored):
        if is_flat:
            fragments.append(LanceFragment.create(uri, part, **file_arguments))
        else:
            fragments += write_fragments(part, uri, **limits, **file_arguments, **blob_options)
    if is_numbered:
        overwrite = LanceOperation.Overwrite(schema, fragments)
        return lance.LanceDataset.commit(uri, overwrite, **lance_arguments)
    overwrite = LanceOperation.Overwrite(written, fragments)
    dataset = lance.LanceDataset.commit(uri, overwrite, **lance_arguments)
    renumbered = [_with_field_ids(part.metadata, new_id) for part in dataset.get_fragments()]
    return lance.LanceDataset.commit(
        uri,
        LanceOperation.Overwrite(schema, renumbered),
        read_version=dataset.version,
        **lance_arguments,
    )


def _schema_with_base_ids(base: BaseTable) -> LanceSchema:
    """Return the base table's schema with a tombstone column, whose id is the next free one.

    Unusable columns are left out.
    """
    schema = base.stored.lance_schema
    top_level = {field.name(): field.id() for field in schema.fields()}
    nullable = {i for name, i in top_level.items() if name not in base.primary_key}
    metadata, *fields = schema.__reduce__()[1]
    ids = _field_ids(schema.fields())
    unusable = set(_field_ids([f for f in schema.fields() if f.name() in base.unusable]))
    tombstone = LanceSchema.from_pyarrow(
        pa.schema([pa.field(TOMBSTONE, pa.bool_(), nullable=False)])
    )
    return LanceSchema._from_protos(
        metadata,
        *(
            make_nullable(field) if field_id in nullable else field
            for field_id, field in zip(ids, fields, strict=True)
            if field_id not in unusable
        ),
        replace_field_id(tombstone.__reduce__()[1][1], max(ids) + 1),
    )


def _field_ids(fields: Iterable[LanceField]) -> list[int]:
    """Return the ids of fields in storage order: parents before children."""

    def walk(fields: Iterable[LanceField]) -> Iterator[int]:
        for field in fields:
            yield field.id()
            yield from walk(field.children())

    return list(walk(fields))


def _with_field_ids(fragment: FragmentMetadata, new_id: dict[int, int]) -> FragmentMetadata:
    metadata = fragment.to_json()
    for file in metadata["files"]:
        file["fields"] = [new_id[field_id] for field_id in file["fields"]]
    return FragmentMetadata.from_json(json.dumps(metadata))


def write_generation(
    base: BaseTable,
    region_id: UUID,
    generation: int,
    contents: GenerationRows | pa.Table,
    indexes: Sequence[MaintainedIndex],
    *,
    held: ObjectStore | None = None,
) -> FlushedGeneration:
    """Write the newest row of each key into a new folder, complete and durable.

    Without a primary key, every row is written, and no key index, as by Lance's own writer.
    Needs memory for all keys and a few batches, besides ``contents``: at least one stored row,
    oldest first. Columns of ``base`` are matched by field id. It may be newer than ``contents``: a
    column that was dropped since is left out, with its index, and one that was added is null.
    ``held`` is the store that holds the folder of the region, whose name is durable then.

    Nothing is durable before the sync, which is the only one: each file and each folder once, then
    the name of the new folder. A process or machine that dies before it ends leaves an orphan in
    any state, of which nothing is named. The caller names the generation after this returns.

    Returns the entry for the region's manifest.

    Raises
    ------
    TableSetupError
        The table has no MemWAL: it was replaced, and the rows belong to the previous table.
    InvalidInputError
        A key column is missing in the rows, or a value cannot be cast to the column's type.
    LostWriteError
        A file was not written whole, or the garbage collector deleted the folder while it was
        written; call again.
    CorruptDataError
        A column was written so that it cannot be decoded.
    MemWalError
        The store or ``contents`` failed.
    """
    base.require_mem_wal()
    name = generation_name(generation, secrets.token_hex(4))
    folder = generation_dir(region_id, name)
    location, store = base.location, held or base.location.store
    if isinstance(contents, pa.Table):
        contents = TableRows(contents, base.primary_key)
    newest = NewestKeys.of(contents.keys())
    rows = NewestRowStream(contents, newest.positions, base)
    uri = location.child(folder)
    sizes: dict[str, int | None] = {}
    try:
        dataset = write_dataset(base, uri, rows)
        if base.primary_key:
            sizes = write_key_index(location, f"{folder}/{PK_INDEX_DIR}", newest)
        version = build_generation_indexes(location, folder, dataset, indexes, rows=rows.rows)
    except (OSError, ValueError, CorruptDataError) as error:
        if rows.error is not None:
            raise rows.error from error
        is_translated = isinstance(error, CorruptDataError)
        translated = error if is_translated else translate_lance_error(error, f"writing {uri}")
        if isinstance(translated, CorruptDataError):
            # Only files of this folder are read here.
            raise LostWriteError(f"{translated}; the generation is written again") from error
        raise translated from error
    sized_filter = rows.filters.sized_filter()
    if sized_filter is not None:
        # Not among the files that are looked at below: a reader ignores one that is not whole.
        location.store_without_fsync.put(f"{folder}/{SIZED_FILTER_NAME}", sized_filter)
    location.store_without_fsync.put(f"{folder}/{BLOOM_FILTER_NAME}", rows.filters.bloom_filter())
    store.sync(folder)
    check_generation_files(store, folder, version, key_index=sizes)
    refuse(find_bad_blobs(store, dataset, folder=folder))
    decode_dictionaries(dataset, uri)
    return FlushedGeneration(
        generation=generation,
        path=name,
        memory_bytes=rows.bytes,
        rows=rows.rows,
        key_bytes=rows.key_bytes,
    )


def check_generation_files(
    store: ObjectStore, folder: str, version: int, *, key_index: Mapping[str, int | None]
) -> None:
    """Raise LostWriteError if a file of a generation is missing or was not written whole.

    ``version`` is the newest version of its data set. ``key_index`` has the bytes of each file of
    the key index by name, None for a size that is not known; empty without a primary key.

    An object store stores an object whole or not at all: a listing shows files of the right size.
    """
    manifest = f"{folder}/{table_manifest_keys(version)[0]}"
    others = [
        NamedFile(BLOOM_FILTER_NAME, FileKind.PLAIN, size=FILTER_BYTES),
        *(
            NamedFile(f"{PK_INDEX_DIR}/{name}", FileKind.LANCE, size=size)
            for name, size in key_index.items()
        ),
    ]
    listed = {} if store.is_local else {info.key: info.size for info in store.list(folder)}
    try:
        check_new_files(store, store.get(manifest), folder=folder, listed=listed)
    except ObjectNotFoundError as error:
        refuse([BadFile(folder, str(error))])
    refuse(find_bad_files(store, others, folder=folder, listed=listed))
