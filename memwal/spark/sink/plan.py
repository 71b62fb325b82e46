"""Plan of a write, made by the driver and sent to its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from memwal.errors import InvalidInputError
from memwal.feed.change_rows import CHANGE_COLUMNS
from memwal.lsm.region_places import router_in_force
from memwal.lsm.wal.applied_steps import AppliedStep, Step
from memwal.region.router import Router
from memwal.spark.sink.changes import ChangeColumns, as_table_types
from memwal.spark.sink.commit import RegionCommit
from memwal.spark.sink.options import WriteOptions
from memwal.spark.sink.staged_rows import RegionStream, stage_rows
from memwal.storage.location import TableLocation
from memwal.table import open


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Table, regions and columns of a write, as its tasks get them; it can be pickled."""

    location: TableLocation
    options: WriteOptions
    changes: ChangeColumns
    schema: pa.Schema  # the columns of the table that are written
    names: tuple[str, ...]  # these columns, and those that tell deletes and order
    router: Router

    def stage(self, batches: Iterable[pa.RecordBatch]) -> tuple[RegionStream, ...]:
        """Stage the rows of a task; runs in an executor."""
        return tuple(stage_rows(self.location, batches, self._convert, self.router))

    def commit(self, parts: Sequence[RegionStream], step: Step | None) -> AppliedStep:
        """Write the rows of all tasks into the regions."""
        table = open(self.location.uri, storage_options=self.location.storage_options)
        return RegionCommit(
            table=table,
            changes=self.changes,
            schema=self.schema,
            partial=self.options.partial,
            step=step,
        ).write(parts)

    def _convert(self, rows: pa.Table) -> pa.Table:
        """Return the rows in the table's types; a value that does not fit is an error here."""
        rows = rows.select(self.names)
        columns = as_table_types(rows, self.schema)
        for name in self.names[len(self.schema) :]:
            columns = columns.append_column(name, rows.column(name))
        return columns


def plan_write(
    location: TableLocation, options: WriteOptions, columns: Sequence[str], *, overwrite: bool
) -> WritePlan:
    """Check a write against the table, before any task runs.

    Raises TableSetupError if there is no table with MemWAL, and InvalidInputError if rows would be
    overwritten, an option does not fit the table, or a column is missing or unknown.
    """
    uri = location.uri
    if overwrite:
        raise InvalidInputError(
            f"{uri} is not overwritten: that would remove MemWAL, and rows that were not merged "
            "yet. Use mode('append'), or outputMode('append') or ('update') of a stream, which "
            "upsert; delete rows by op_column; or create another table"
        )
    table = open(uri, storage_options=location.storage_options)
    _, spec = table.region_spec()
    key = table.primary_key
    if not key and (options.op_column is not None or options.partial):
        raise InvalidInputError(
            f"{uri} has no primary key, so that no row can be deleted or changed: leave op_column "
            "and partial out"
        )
    if options.op_column in key:
        raise InvalidInputError(f"op_column {options.op_column!r} is a column of the table's key")
    beside_key = sorted({*spec.columns}.difference(key))
    if options.op_column == CHANGE_COLUMNS[0] and beside_key:
        raise InvalidInputError(
            f"deletes of a feed lack the columns {', '.join(beside_key)}, which tell the regions "
            f"of {uri}: write into a table that is divided by its key, or leave op_column out if "
            "nothing is deleted"
        )
    changes = ChangeColumns(
        op_column=options.op_column,
        delete_ops=options.delete_ops,
        sequence_by=options.sequence_by,
    )
    schema = table.schema
    if options.partial:
        needed = {*key, *spec.columns, *columns}
        schema = pa.schema([field for field in schema if field.name in needed])
    names = changes.names(schema)
    _check_columns(uri, columns, names, drop_extra=options.drop_extra_columns)
    return WritePlan(
        location=location,
        options=options,
        changes=changes,
        schema=schema,
        names=tuple(names),
        router=router_in_force(table.base()),
    )


def _check_columns(
    uri: str, columns: Sequence[str], names: Sequence[str], *, drop_extra: bool
) -> None:
    missing = [name for name in names if name not in columns]
    if missing:
        raise InvalidInputError(
            f"the rows for {uri} lack the columns {', '.join(missing)}; they have "
            f"{', '.join(columns)}"
        )
    extra = [name for name in columns if name not in names]
    if extra and not drop_extra:
        raise InvalidInputError(
            f"the rows have columns that {uri} lacks: {', '.join(extra)}; add them to the table, "
            "or leave them out with the option drop_extra_columns"
        )
