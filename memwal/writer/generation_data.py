"""The data of a generation: a Lance table with the field ids of the base table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import lance
import pyarrow as pa
from lance.dataset import LanceOperation
from lance.fragment import FragmentMetadata, write_fragments
from lance.schema import LanceSchema

from memwal.format.lance_schema import made_nullable, with_id
from memwal.format.names import TOMBSTONE
from memwal.format.storable import OLD_VERSIONS
from memwal.table_index.base_table import BaseTable
from memwal.writer.newest_batches import NewestBatches

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
        data_storage_version=_OLDEST_VERSION if version in OLD_VERSIONS else version,
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
