"""Write stored rows as a generation: a Lance table in its region (spec: Flushed MemTable).

Everything goes into a folder with a random name that no manifest mentions yet. An attempt that dies
leaves an orphan for the garbage collector and nothing else. After the bloom filter, which is
written last, the data file that was written first is looked for again: if it is gone, this process
slept for so long that a collector took the folder for an orphan, and the generation is written
again. The table has the field ids of the base table.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

import lance
import pyarrow as pa
from lance.dataset import LanceOperation
from lance.fragment import FragmentMetadata, write_fragments
from lance.schema import LanceSchema

from memwal.base_table.snapshot import BaseTable, translate_lance_error
from memwal.errors import StoreUnavailableError
from memwal.format.lance_manifest import make_nullable, replace_field_id
from memwal.format.paths import (
    BLOOM_FILTER_NAME,
    DATA_DIR,
    PK_INDEX_DIR,
    TOMBSTONE,
    generation_dir,
    generation_name,
)
from memwal.format.region_manifest import FlushedGeneration
from memwal.format.values import VERSIONS_WITHOUT_NULL_STRUCTS
from memwal.lsm.flush.key_index import NewestKeys, write_key_index
from memwal.lsm.flush.rows import GenerationRows, NewestBatches, TableRows
from memwal.lsm.indexes.maintained import MaintainedIndex, build_indexes

if TYPE_CHECKING:
    from lance.lance.schema import LanceField

# One file per generation: a generation is bounded by the MemTable's size, and the rows of its
# key index are those of one file.
_NO_LIMIT = 1 << 62

# Earlier ones cannot hold a struct that is null, which is what a deleted row has.
_OLDEST_VERSION: Final = "2.1"


def write_data(base: BaseTable, uri: str, rows: NewestBatches) -> lance.LanceDataset:
    """Write rows as a new data set.

    Raises
    ------
    OSError, ValueError
        As pylance raises them.
    """
    reach = base.location.lance_arguments()
    version = base.dataset.data_storage_version
    fragments = write_fragments(
        rows.reader(),
        uri,
        mode="create",
        data_storage_version=_OLDEST_VERSION
        if version in VERSIONS_WITHOUT_NULL_STRUCTS
        else version,
        max_rows_per_file=_NO_LIMIT,
        max_bytes_per_file=_NO_LIMIT,
        **reach,
    )
    wanted = _schema_with_base_ids(base)
    # Lance numbers the fields of a new data set in the order of its columns, whatever is asked
    # for. Only a table whose columns were dropped or moved has other ids, set by a second commit.
    written = LanceSchema.from_pyarrow(rows.schema)
    new_id = dict(zip(_ids(written), _ids(wanted), strict=True))
    if all(old == new for old, new in new_id.items()):
        return lance.LanceDataset.commit(uri, LanceOperation.Overwrite(wanted, fragments), **reach)
    dataset = lance.LanceDataset.commit(uri, LanceOperation.Overwrite(written, fragments), **reach)
    renumbered = [_renumbered(part.metadata, new_id) for part in dataset.get_fragments()]
    return lance.LanceDataset.commit(
        uri,
        LanceOperation.Overwrite(wanted, renumbered),
        read_version=dataset.version,
        **reach,
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
            make_nullable(field) if field_id in nullable else field
            for field_id, field in zip(ids, fields, strict=True)
        ),
        replace_field_id(tombstone.__reduce__()[1][1], max(ids) + 1),
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


def write_generation(
    base: BaseTable,
    region_id: UUID,
    generation: int,
    contents: GenerationRows | pa.Table,
    indexes: Sequence[MaintainedIndex],
) -> FlushedGeneration:
    """Write the newest row of each key into a new folder, complete and durable.

    Memory beyond ``contents`` is bounded by the keys and some batches.

    Parameters
    ----------
    base : BaseTable
        Gives the columns, matched by field id, and may be newer than ``contents``: a column that
        was dropped since is left out, one that was added is null.
    contents : GenerationRows or pyarrow.Table
        Stored rows, oldest first. At least one.
    indexes : sequence of MaintainedIndex
        Built into the generation, as far as their columns exist.

    Returns
    -------
    FlushedGeneration
        What the region's manifest is to say about it.

    Raises
    ------
    TableSetupError
        The table has no MemWAL any more: it was replaced, and the rows belong to another one.
    InvalidInputError
        A key column is missing in the rows, or a value cannot become the column's type.
    StoreUnavailableError
        It was collected meanwhile; to be called again.
    MemWalError
        What the store, or the contents, failed with.
    """
    base.require_mem_wal()
    name = generation_name(generation, secrets.token_hex(4))
    folder = generation_dir(region_id, name)
    location, store = base.location, base.location.store
    if isinstance(contents, pa.Table):
        contents = TableRows(contents, base.primary_key)
    newest = NewestKeys.of(contents.keys())
    rows = NewestBatches(contents, newest.kept, base)
    uri = location.child(folder)
    try:
        dataset = write_data(base, uri, rows)
        write_key_index(location, f"{folder}/{PK_INDEX_DIR}", newest)
        build_indexes(location, folder, dataset, indexes)
    except (OSError, ValueError) as error:
        if rows.error is not None:
            raise rows.error from error
        raise translate_lance_error(error, f"writing {uri}") from error
    store.put(f"{folder}/{BLOOM_FILTER_NAME}", rows.bloom_filter())
    store.sync(folder)
    if not store.exists(f"{folder}/{DATA_DIR}/{_first_file(dataset)}"):
        # This process slept for so long that a collector took what there was for an orphan.
        raise StoreUnavailableError(
            f"generation {generation} of region {region_id} was collected while it was written; "
            "it is written again"
        )
    return FlushedGeneration(
        generation=generation,
        path=name,
        memory_bytes=rows.bytes,
        rows=rows.rows,
        key_bytes=rows.key_bytes,
    )


def _first_file(dataset: lance.LanceDataset) -> str:
    """What was written first of a generation."""
    path: str = dataset.get_fragments()[0].data_files()[0].path
    return path
