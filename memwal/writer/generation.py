"""Writing a MemTable as a generation: a Lance table in its region (spec: Flushed MemTable).

Everything goes into a folder with a random name that no manifest mentions yet; a try that dies
leaves an orphan for the garbage collector and nothing else.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.dataset import LanceOperation
from lance.file import LanceFileWriter
from lance.fragment import FragmentMetadata
from lance.schema import LanceSchema

from memwal.format.bloom import build_bloom_filter
from memwal.format.lance_schema import made_nullable, with_id
from memwal.format.names import (
    BLOOM_FILTER_NAME,
    MEM_WAL_INDEX_NAME,
    PK_INDEX_DIR,
    TOMBSTONE,
    generation_dir,
    generation_name,
)
from memwal.format.region_manifest import FlushedGeneration
from memwal.region.newest import key_column
from memwal.storage.location import TableLocation
from memwal.table_index.base_table import BaseTable, translate_lance_error
from memwal.writer.memtable import newest_per_key

if TYPE_CHECKING:
    from lance.lance.schema import LanceField

logger = logging.getLogger(__name__)

# One file per generation: a generation is bounded by the MemTable's size.
_ROWS_PER_FILE = 1 << 31
_PAGE_ROWS = 8192
_PK_INDEX_FILE_VERSION = "2.0"

_SCALAR_KINDS = {
    "BTree": "BTREE",
    "Bitmap": "BITMAP",
    "LabelList": "LABEL_LIST",
    "NGram": "NGRAM",
    "ZoneMap": "ZONEMAP",
    "BloomFilter": "BLOOMFILTER",
}


@dataclass(frozen=True, slots=True)
class MaintainedIndex:
    """A scalar index of the base table that every generation carries too."""

    name: str
    column: str
    kind: str


def maintained_indexes(base: BaseTable) -> tuple[MaintainedIndex, ...]:
    """Scalar indexes that the table's MemWAL details ask writers to maintain."""
    wanted = base.details.maintained_indexes
    found = []
    for index in base.dataset.describe_indices():
        if index.name == MEM_WAL_INDEX_NAME:
            continue
        if not (base.details.maintain_all_indexes or index.name in wanted):
            continue
        if index.index_type in _SCALAR_KINDS and len(index.field_names) == 1:
            kind = _SCALAR_KINDS[index.index_type]
            found.append(MaintainedIndex(index.name, index.field_names[0], kind))
        else:
            logger.warning(
                "generations of %s are flushed without index %s (%s); Lance's own vector and text "
                "search does not see their rows until they are merged and indexed",
                base.location,
                index.name,
                index.index_type,
            )
    return tuple(found)


def write_generation(
    base: BaseTable,
    region_id: UUID,
    generation: int,
    contents: pa.Table,
    indexes: Sequence[MaintainedIndex],
) -> FlushedGeneration:
    """Write the newest row of each key into a new folder, complete and durable.

    Parameters
    ----------
    base : BaseTable
        Gives the field ids: generations match the base table's columns by them.
    contents : pyarrow.Table
        Stored rows, oldest first.

    Returns
    -------
    FlushedGeneration
        What the region's manifest is to say about it.
    """
    name = generation_name(generation, secrets.token_hex(4))
    folder = generation_dir(region_id, name)
    location, store = base.location, base.location.store
    rows = newest_per_key(contents, base.primary_key).combine_chunks()
    keys = [rows.column(column) for column in base.primary_key]
    uri = location.child(folder)
    try:
        dataset = _write_rows(base, uri, rows)
        for index in indexes:
            dataset.create_scalar_index(index.column, index.kind, name=index.name)
        _write_key_index(location, f"{folder}/{PK_INDEX_DIR}", key_column(rows, base.primary_key))
    except (OSError, ValueError) as error:
        raise translate_lance_error(error, f"writing {uri}") from error
    store.put(f"{folder}/{BLOOM_FILTER_NAME}", build_bloom_filter(keys))
    store.sync(folder)
    return FlushedGeneration(
        generation=generation,
        path=name,
        memory_bytes=rows.nbytes,
        rows=rows.num_rows,
        key_bytes=sum(column.nbytes for column in keys),
    )


def _write_rows(base: BaseTable, uri: str, rows: pa.Table) -> lance.LanceDataset:
    options = dict(base.location.storage_options) or None
    dataset = lance.write_dataset(
        rows,
        uri,
        mode="create",
        data_storage_version=base.dataset.data_storage_version,
        max_rows_per_file=_ROWS_PER_FILE,
        storage_options=options,
    )
    wanted = _schema_with_base_ids(base)
    written_ids, wanted_ids = _ids(dataset.lance_schema), _ids(wanted)
    if written_ids == wanted_ids:
        return dataset
    new_id = dict(zip(written_ids, wanted_ids, strict=True))
    fragments = [_renumbered(f.metadata, new_id) for f in dataset.get_fragments()]
    return lance.LanceDataset.commit(
        uri,
        LanceOperation.Overwrite(wanted, fragments),
        read_version=dataset.version,
        storage_options=options,
    )


def _schema_with_base_ids(base: BaseTable) -> LanceSchema:
    """The base table's schema with a tombstone column whose id is the next free one."""
    schema = base.dataset.lance_schema
    top_level = {field.name(): field.id() for field in schema.fields()}
    nullable = {i for name, i in top_level.items() if name not in base.primary_key}
    metadata, *fields = schema.__reduce__()[1]
    ids = _ids(schema)
    tombstone = LanceSchema.from_pyarrow(
        pa.schema([pa.field(TOMBSTONE, pa.bool_(), nullable=False)])
    )
    return LanceSchema._from_protos(
        metadata,
        *(
            made_nullable(field) if field_id in nullable else field
            for field_id, field in zip(ids, fields, strict=True)
        ),
        with_id(tombstone.__reduce__()[1][1], max(ids) + 1),
    )


def _ids(schema: LanceSchema) -> list[int]:
    """Field ids in the order in which the schema stores its columns: parents before children."""

    def walk(fields: Iterable[LanceField]) -> Iterator[int]:
        for field in fields:
            yield field.id()
            yield from walk(field.children())

    return list(walk(schema.fields()))


def _renumbered(fragment: FragmentMetadata, new_id: dict[int, int]) -> FragmentMetadata:
    described = fragment.to_json()
    for file in described["files"]:
        file["fields"] = [new_id[field_id] for field_id in file["fields"]]
    return FragmentMetadata.from_json(json.dumps(described))


def _write_key_index(location: TableLocation, folder: str, keys: pa.Array) -> None:
    """Write the sidecar that tells where each key stands: a BTREE over the key, sorted."""
    # Keys are distinct here, so that their order alone decides.
    order = pc.sort_indices(keys).cast(pa.uint64())
    data_schema = pa.schema(
        [pa.field("values", keys.type), pa.field("ids", pa.uint64(), nullable=False)]
    )
    ordered = pa.table([keys.take(order), order], schema=data_schema)
    pages = ordered.to_batches(max_chunksize=_PAGE_ROWS)
    with _key_index_file(location, f"{folder}/page_data.lance", data_schema) as data:
        for page in pages:
            data.write_batch(page)
    lookup_schema = pa.schema(
        [
            pa.field("min", keys.type),
            pa.field("max", keys.type),
            pa.field("null_count", pa.uint32(), nullable=False),
            pa.field("page_idx", pa.uint32(), nullable=False),
        ]
    )
    sorted_keys = ordered.column("values").combine_chunks()
    first = np.arange(0, len(keys), _PAGE_ROWS)
    last = np.minimum(first + _PAGE_ROWS, len(keys)) - 1
    lookup = pa.record_batch(
        [
            sorted_keys.take(pa.array(first)),
            sorted_keys.take(pa.array(last)),
            pa.array(np.zeros(len(first), dtype=np.uint32)),
            pa.array(np.arange(len(first), dtype=np.uint32)),
        ],
        schema=lookup_schema,
    )
    with _key_index_file(location, f"{folder}/page_lookup.lance", lookup_schema) as file:
        file.add_schema_metadata("batch_size", str(_PAGE_ROWS))
        file.add_schema_metadata("range_partitioned", "false")
        file.write_batch(lookup)


def _key_index_file(location: TableLocation, path: str, schema: pa.Schema) -> LanceFileWriter:
    return LanceFileWriter(
        location.child(path),
        schema,
        version=_PK_INDEX_FILE_VERSION,
        storage_options=dict(location.storage_options) or None,
    )
