"""Write stored rows as a generation: a Lance table in its region (spec: Flushed MemTable).

All files go into a folder with a random name that no manifest lists yet. An attempt that dies
leaves only an orphan, which the garbage collector deletes. The bloom filter is written last. After
it, every file is checked, and dictionaries are decoded, see :mod:`memwal.base_table.named_files`.
If a file was not written whole, the attempt fails, and the next one writes into another folder;
until one succeeds, the rows stay in the log. If a file is gone, this process was paused for so long
that the garbage collector took the folder for an orphan, and the generation is written again. The
fields of the table have the ids of the base table's fields.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final
from uuid import UUID

import lance
import pyarrow as pa
from lance.file import LanceFileWriter
from lance.fragment import FragmentMetadata, write_fragments
from lance.schema import LanceSchema

from memwal.base_table.blobs import write_options
from memwal.base_table.named_files import (
    decode_dictionaries,
    find_bad_blobs,
    find_bad_files,
    refuse,
)
from memwal.base_table.snapshot import BaseTable, data_files, field_ids, open_dataset
from memwal.boundary.lance_errors import translate_lance_error
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format.bloom import FILTER_BYTES
from memwal.format.lance_files import FileKind, NamedFile
from memwal.format.lance_manifest import NewFile, first_manifest, named_files
from memwal.format.paths import (
    BLOOM_FILTER_NAME,
    DATA_DIR,
    PK_INDEX_DIR,
    SIZED_FILTER_NAME,
    generation_dir,
    generation_name,
    table_manifest_keys,
)
from memwal.format.region_manifest import FlushedGeneration
from memwal.format.values import VERSIONS_WITHOUT_NULL_STRUCTS
from memwal.format.wal_layout import has_dictionaries
from memwal.inputs.dictionaries import divide_by_values
from memwal.lsm.flush.key_index import NewestKeys, write_key_index
from memwal.lsm.flush.rows import GenerationRows, NewestRowStream, TableRows
from memwal.lsm.indexes.maintained import MaintainedIndex, build_generation_indexes
from memwal.region.rows import stored_schema
from memwal.storage.object_store import ObjectStore
from memwal.util.retry import LostWriteError

# One file per generation, whose size the MemTable bounds: a reader opens one file, and takes the
# rows of many keys from one. A limit of 2^32 rows or more makes Lance begin another file with
# each batch.
_MAX_ROWS = (1 << 32) - 1
_MAX_BYTES = 1 << 62

# Earlier file versions cannot store a null struct, and the structs of a deleted row are null.
_OLDEST_VERSION: Final = "2.1"

_FIRST_MANIFEST: Final = table_manifest_keys(1)[0]


def write_data_files(base: BaseTable, uri: str, rows: NewestRowStream) -> list[NewFile]:
    """Write rows as data files of a new data set, in columns with the field ids of the base table.

    Raises OSError and ValueError of pylance.
    """
    stored = stored_schema(base.stored_schema, base.primary_key)
    ids = field_ids(base.generation_schema.fields())
    version = _storage_version(base)
    lance_arguments = base.location.lance_arguments()
    files: list[NewFile] = []
    for part in divide_by_values(rows.reader(), stored):
        if len(ids) == len(stored) and not write_options(stored):
            # Each column is one of the file.
            columns = tuple(zip(ids, count(), strict=False))
            files.append(_write_file(uri, part, columns, version, lance_arguments))
            continue
        # Lance numbers the fields of a new data set in the order of its columns. The ids of the
        # base table differ if columns of it were dropped or moved.
        numbered = field_ids(LanceSchema.from_pyarrow(stored).fields())
        files += (
            _new_file(fragment, dict(zip(numbered, ids, strict=True)))
            for fragment in write_fragments(
                part,
                uri,
                mode="create",
                max_rows_per_file=_MAX_ROWS,
                max_bytes_per_file=_MAX_BYTES,
                data_storage_version=version,
                **lance_arguments,
                **write_options(stored),
            )
        )
    return files


def _storage_version(base: BaseTable) -> str:
    version = str(base.dataset.data_storage_version)
    return _OLDEST_VERSION if version in VERSIONS_WITHOUT_NULL_STRUCTS else version


def _first_manifest(base: BaseTable, files: Sequence[NewFile]) -> bytes:
    """Return the manifest of the first version of a generation.

    memwal stores it itself, since a commit by Lance takes as long as all files.
    """
    metadata, *fields = base.generation_schema.__reduce__()[1]
    return first_manifest(
        fields,
        {key: bytes(value) for key, value in json.loads(metadata).items()},
        files,
        storage_version=_storage_version(base),
        lance_version=lance.__version__,
    )


def _write_file(
    uri: str,
    rows: pa.RecordBatchReader,
    columns: tuple[tuple[int, int], ...],
    version: str,
    lance_arguments: Mapping[str, object],
) -> NewFile:
    """Write a data file of columns that have no fields inside, in half the time of a fragment."""
    name = f"{secrets.token_hex(16)}.lance"
    path = f"{uri}/{DATA_DIR}/{name}"
    with LanceFileWriter(path, rows.schema, version=version, **lance_arguments) as file:
        number = 0
        for batch in rows:
            number += batch.num_rows
            file.write_batch(batch)
    major, minor = map(int, version.split("."))
    return NewFile(number, name, file.size_bytes, (major, minor), columns)


def _new_file(fragment: FragmentMetadata, new_id: dict[int, int]) -> NewFile:
    (file,) = data_files(fragment)
    return NewFile(
        fragment.physical_rows,
        file.path,
        file.file_size_bytes,
        (file.file_major_version, file.file_minor_version),
        tuple(
            (new_id[field], column)
            for field, column in zip(file.fields, file.column_indices, strict=True)
        ),
    )


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
    try:
        data = write_data_files(base, uri, rows)
        manifest = _first_manifest(base, data)
        location.store_without_fsync.put(f"{folder}/{_FIRST_MANIFEST}", manifest)
        files = [
            NamedFile(BLOOM_FILTER_NAME, FileKind.PLAIN, size=FILTER_BYTES),
            NamedFile(_FIRST_MANIFEST, FileKind.PLAIN, size=len(manifest)),
            *(NamedFile(f"{DATA_DIR}/{f.path}", FileKind.LANCE, size=f.size) for f in data),
        ]
        if base.primary_key:
            for key, size in write_key_index(location, f"{folder}/{PK_INDEX_DIR}", newest).items():
                files.append(NamedFile(f"{PK_INDEX_DIR}/{key}", FileKind.LANCE, size=size))
        schema = base.generation_schema
        version = build_generation_indexes(location, folder, schema, indexes, rows=rows.rows)
    except (OSError, ValueError, CorruptDataError) as error:
        if rows.error is not None:
            raise rows.error from error
        translated = translate_lance_error(error, f"writing {uri}")
        if isinstance(translated, CorruptDataError):
            # Only files of this folder are read here.
            raise LostWriteError(f"{translated}; the generation is written again") from error
        if translated is error:
            raise
        raise translated from error
    sized_filter = rows.filters.sized_filter()
    if sized_filter is not None:
        # Not among the files that are looked at below: a reader ignores one that is not whole.
        location.store_without_fsync.put(f"{folder}/{SIZED_FILTER_NAME}", sized_filter)
    location.store_without_fsync.put(f"{folder}/{BLOOM_FILTER_NAME}", rows.filters.bloom_filter())
    store.sync(folder)
    check_generation_files(store, folder, files, version=version)
    if has_dictionaries(base.stored_schema) or write_options(base.stored_schema):
        dataset = open_dataset(location, folder, version=version, as_stored=True)
        refuse(find_bad_blobs(store, dataset, folder=folder))
        decode_dictionaries(dataset, uri)
    return FlushedGeneration(
        region_id=region_id,
        generation=generation,
        path=name,
        memory_bytes=rows.bytes,
        rows=rows.rows,
        key_bytes=rows.key_bytes,
    )


def check_generation_files(
    store: ObjectStore, folder: str, files: Sequence[NamedFile], *, version: int
) -> None:
    """Raise LostWriteError if a file of a generation is missing or was not written whole.

    ``files`` are those of the first version of its data set, and its own. ``version`` is the newest
    one: if Lance committed it, the files that its manifest names are checked too.

    An object store stores an object whole or not at all: a listing shows files of the right size.
    """
    listed = {} if store.is_local else {info.key: info.size for info in store.list(folder)}
    if version > 1:
        try:
            manifest = store.get(f"{folder}/{table_manifest_keys(version)[0]}")
            files = [*files, *named_files(manifest)]
        except (CorruptDataError, ObjectNotFoundError) as error:
            raise LostWriteError(f"{error}; the generation is written again") from error
    refuse(find_bad_files(store, files, folder=folder, listed=listed))
