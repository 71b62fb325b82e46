"""Writing stored rows as a generation: a Lance table in its region (spec: Flushed MemTable).

Everything goes into a folder with a random name that no manifest mentions yet; a try that dies
leaves an orphan for the garbage collector and nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from uuid import UUID

import lance
import pyarrow as pa

from memwal.errors import StoreUnavailableError
from memwal.format.names import (
    BLOOM_FILTER_NAME,
    DATA_DIR,
    PK_INDEX_DIR,
    generation_dir,
    generation_name,
)
from memwal.format.region_manifest import FlushedGeneration
from memwal.table_index.base_table import BaseTable, translate_lance_error
from memwal.writer.generation_data import write_data
from memwal.writer.generation_rows import GenerationRows, TableRows
from memwal.writer.key_sidecar import NewestKeys, write_key_index
from memwal.writer.maintained import MaintainedIndex, build_indexes
from memwal.writer.newest_batches import NewestBatches


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
