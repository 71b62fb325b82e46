"""Quarantine table: a plain Lance table with the rows that were kept out of a table.

A merge keeps out rows that fail its quality gate. A repair keeps out rows of a region's log that
cannot be stored, e.g. with a null key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Self
from uuid import UUID

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from memwal.base_table.blobs import is_blob_v2
from memwal.base_table.commit import commit_durably, create_durably
from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    TableSetupError,
)
from memwal.format.paths import parse_generation_name
from memwal.format.values import with_children
from memwal.quality.expectations import Expectation, suite_digest
from memwal.quality.gate import QuarantinedRows
from memwal.quality.report import keys_as_json
from memwal.quality.rules import quarantine_beside
from memwal.storage.location import TableLocation
from memwal.util.records import JsonObject
from memwal.util.retry import LostRaceError, retry_lost_races

PREFIX = "quarantine_"
FOLDER = f"{PREFIX}folder"
"""Column with the folder of the generation that a quarantined row comes from, or its log entry."""
ROW = f"{PREFIX}row"
"""Column with the number of a quarantined row in its generation or log entry."""
_ORIGIN = (f"{PREFIX}region", FOLDER, ROW)
_GENERATION = f"{PREFIX}generation"
_STATE = f"{PREFIX}state"
_META = pa.schema(
    [
        pa.field(_ORIGIN[0], pa.string(), nullable=False),
        pa.field(_ORIGIN[1], pa.string(), nullable=False),
        pa.field(_ORIGIN[2], pa.int64(), nullable=False),
        pa.field(_GENERATION, pa.int64(), nullable=False),
        pa.field(_STATE, pa.string(), nullable=False),
        pa.field(f"{PREFIX}at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field(f"{PREFIX}expectations", pa.list_(pa.string())),
        pa.field(f"{PREFIX}reason", pa.string()),
        pa.field(f"{PREFIX}suite", pa.string()),
    ]
)
_ENTRY = re.compile(r"[0-9a-f]{8}_wal_(0|[1-9][0-9]{0,19})")


class RowState(StrEnum):
    """Review state of a quarantined row."""

    WAITING = "waiting"
    RELEASED = "released"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True, order=True)
class RowOrigin:
    """Region, folder and row number: the key of a row in the quarantine table.

    The folder is that of a generation, whose name is unique. Its number and its region id are not:
    other tables use the same ones, and so does a table that is created anew in the same place. For
    a row of the log it is :func:`entry_folder`.
    """

    region_id: UUID
    folder: str
    row: int

    def __str__(self) -> str:
        return f"{self.region_id}/{self.folder}/{self.row}"

    @property
    def generation(self) -> int:
        """Number of the generation; 0 for a row of the log."""
        return parse_generation_name(self.folder) or 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of :meth:`__str__`, REGION/FOLDER/ROW; else InvalidInputError."""
        try:
            region, folder, row = text.split("/")
            if parse_generation_name(folder) is not None or _ENTRY.fullmatch(folder):
                return cls(UUID(region), folder, int(row))
        except ValueError:
            pass
        raise InvalidInputError(
            f"{text!r} is not the origin of a row: REGION/FOLDER/ROW, as lists show it"
        )


def entry_folder(position: int, digest: int) -> str:
    """Return the name that stands for a log entry in the origin of its rows.

    ``digest`` is a 32-bit hash of the entry's bytes.
    """
    return f"{digest:08x}_wal_{position}"


def quarantined_rows(
    region_id: UUID, found: QuarantinedRows, *, suite: Sequence[Expectation]
) -> pa.Table:
    """Build the rows of the quarantine table from the rows that a region's gate kept out."""
    expectations, reasons = _failure_columns(found, found.rows.num_rows)
    return _with_origin(
        found.rows,
        {
            _ORIGIN[0]: [str(region_id)] * found.rows.num_rows,
            _ORIGIN[1]: found.folders,
            _ORIGIN[2]: found.positions,
            _GENERATION: found.generations,
            f"{PREFIX}expectations": expectations,
            f"{PREFIX}reason": reasons,
            f"{PREFIX}suite": [suite_digest(suite)] * found.rows.num_rows,
        },
    )


def logged_rows(
    region_id: UUID,
    folder: str,
    rows: pa.Table,
    *,
    generation: int,
    numbers: npt.NDArray[np.int64],
    reasons: Sequence[str],
) -> pa.Table:
    """Build the rows of the quarantine table from unusable rows of a log entry.

    ``folder`` is that of :func:`entry_folder`, ``generation`` the one that the rows would have been
    flushed in, ``numbers`` the row numbers in the entry.
    """
    return _with_origin(
        rows,
        {
            _ORIGIN[0]: [str(region_id)] * rows.num_rows,
            _ORIGIN[1]: [folder] * rows.num_rows,
            _ORIGIN[2]: numbers,
            _GENERATION: [generation] * rows.num_rows,
            f"{PREFIX}expectations": pa.nulls(rows.num_rows),
            f"{PREFIX}reason": reasons,
            f"{PREFIX}suite": pa.nulls(rows.num_rows),
        },
    )


def _with_origin(rows: pa.Table, described: Mapping[str, object]) -> pa.Table:
    """Put the columns of the quarantine before those of the rows."""
    reserved = [name for name in rows.schema.names if name.startswith(PREFIX)]
    if reserved:
        raise InvalidInputError(
            f"the table has the column {reserved[0]}, whose name the quarantine needs; rename it, "
            "or choose another quality mode"
        )
    meta = {
        **described,
        _STATE: [RowState.WAITING.value] * rows.num_rows,
        f"{PREFIX}at": [datetime.now(UTC)] * rows.num_rows,
    }
    whole = pa.table({name: meta[name] for name in _META.names}, schema=_META)
    # Field metadata is dropped: it may mark a primary key, and the key here is the origin.
    # Blobs are plain values there, since Lance's merge_insert takes no external ones. JSON is text:
    # Lance refuses some that other clients log.
    for field, column in zip(rows.schema, rows.columns, strict=True):
        kind = field.type
        if is_blob_v2(field) or isinstance(kind, pa.JsonType):
            kind = kind.storage_type
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind)
        whole = whole.append_column(pa.field(field.name, kind), column)
    return whole


def _failure_columns(found: QuarantinedRows, count: int) -> tuple[pa.Array, pa.Array]:
    """Build two columns with the expectations that each row fails: as a list and as a text."""
    labels = [str(expectation) for expectation, _ in found.failures]
    names = [
        f"{expectation.type}({', '.join(expectation.columns)})" for expectation, _ in found.failures
    ]
    masks = np.stack([mask for _, mask in found.failures], axis=1) if labels else None
    if masks is None or not count:
        return pa.nulls(count, pa.list_(pa.string())), pa.nulls(count, pa.string())
    # There are few distinct combinations, however many rows there are.
    kinds, which = np.unique(masks, axis=0, return_inverse=True)
    combined = [np.flatnonzero(kind) for kind in kinds]
    lists = pa.array([[names[n] for n in kind] for kind in combined], pa.list_(pa.string()))
    texts = pa.array(["; ".join(labels[n] for n in kind) for kind in combined], pa.string())
    positions = pa.array(which.reshape(-1))
    return lists.take(positions), texts.take(positions)


class Quarantine:
    """Quarantine table at a location, created with its first row."""

    def __init__(self, location: TableLocation) -> None:
        self.location = location

    @classmethod
    def of(cls, table: TableLocation, uri: str | None = None) -> Self:
        """Return the quarantine of a ``table``: at ``uri``, by default beside the table."""
        return cls(TableLocation(uri or quarantine_beside(table.uri), table.storage_options))

    def __str__(self) -> str:
        return str(self.location)

    def write(self, rows: pa.Table, *, still_pending: Callable[[], bool] = lambda: True) -> bool:
        """Insert ``rows`` of :func:`quarantined_rows` that are not in the table yet, durably.

        ``still_pending`` is called after the base version of the commit was opened; if it returns
        False, nothing is written, and neither does this return True. The commit lands directly
        behind that version or fails.

        Raises
        ------
        TableSetupError
            A column has changed its type, or a new field cannot be added to it.
        ConflictError
            Every attempt lost against another commit.
        StoreError
            The store failed.
        """
        written = False

        def add(base: BaseTable) -> None:
            nonlocal written
            kinds = pa.struct(rows.schema), pa.struct(base.schema)
            missing = missing_part(*kinds, addable=True)
            if missing is not None:
                try:
                    self._commit(base, lambda dataset: dataset.add_columns(pa.schema([*missing])))
                except InvalidInputError as error:
                    # Lance adds fields of structs only from file version 2.2 on.
                    raise TableSetupError(
                        f"{error}; give the quality rules another quarantine_uri"
                    ) from error
                base = open_base(self.location)
            fitting = _cast_to_schema(rows, base.stored.schema, self.location)
            written = still_pending()
            if not written:
                return
            self._commit(
                base,
                lambda dataset: (
                    dataset.merge_insert(list(_ORIGIN))
                    .when_not_matched_insert_all()
                    .conflict_retries(0)
                    .execute(fitting)
                ),
            )

        self._repeat(add, create=rows.schema)
        return written

    def settle(
        self, merged: Mapping[UUID, Collection[str]], *, quarantined: Collection[RowOrigin] = ()
    ) -> None:
        """Delete waiting rows of merged generations that the merge did not quarantine.

        ``merged`` has the folder names of the merged generations of each region, and
        ``quarantined`` the rows of these generations that the merge did quarantine.

        Commits even if there is nothing to delete. A writer that called ``still_pending`` before
        this commit is therefore refused, and one that calls it later learns that the generations
        are merged: no writer that asks can add a row of these generations any more.
        """
        if not merged:
            return
        parts = [
            f"({_ORIGIN[0]} = '{region}' AND {_ORIGIN[1]} IN ({', '.join(map(repr, folders))}))"
            for region, folders in merged.items()
        ]
        where = f"({' OR '.join(parts)}) AND {_STATE} = '{RowState.WAITING}'"

        def delete_extra(base: BaseTable) -> None:
            waiting = base.dataset.to_table(columns=list(_ORIGIN), filter=where)
            extra = set(origins_of(waiting)).difference(quarantined)
            self._commit(
                base, lambda dataset: dataset.delete(_origin_filter(extra) if extra else "false")
            )

        self._repeat(delete_extra)

    def read(
        self,
        *,
        state: RowState | None = RowState.WAITING,
        origins: Collection[RowOrigin] | None = None,
    ) -> pa.Table:
        """Read rows with all columns, oldest first; an empty table if there is no quarantine.

        Only rows in this ``state``, in any if it is None; with ``origins``, only these rows.
        """
        base = self._open_base()
        if base is None or (origins is not None and not origins):
            return (base.schema if base is not None else _META).empty_table()
        parts = [f"{_STATE} = '{state}'"] if state is not None else []
        if origins is not None:
            parts.append(_origin_filter(origins))
        with lance_errors(f"reading {self.location}"):
            rows = base.dataset.to_table(filter=" AND ".join(parts) or None)
        order = (f"{PREFIX}at", _ORIGIN[0], _GENERATION, *_ORIGIN[1:])
        return rows.sort_by([(name, "ascending") for name in order])

    def mark(self, origins: Collection[RowOrigin], state: RowState) -> int:
        """Set the ``state`` of waiting rows, and return how many rows changed.

        ``origins`` are those of :func:`origins_of`; rows that do not wait are skipped.
        """
        changed = 0

        def update(base: BaseTable) -> None:
            nonlocal changed
            where = f"{_STATE} = '{RowState.WAITING}' AND {_origin_filter(origins)}"
            changed = base.dataset.count_rows(filter=where)
            if changed:
                self._commit(
                    base, lambda dataset: dataset.update({_STATE: f"'{state}'"}, where=where)
                )

        if origins:
            self._repeat(update)
        return changed

    def purge(self, *, before: datetime, stored: Collection[str]) -> int:
        """Delete released and discarded rows, and return how many.

        Rows that were quarantined at the aware time ``before`` or later stay. So do rows of the
        generations ``stored``, by their folders: those that a manifest of the table names, since a
        verification would miss the rows in the base table.
        """
        deleted = 0

        def delete(base: BaseTable) -> None:
            nonlocal deleted
            at = before.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            where = (
                f"{_STATE} != '{RowState.WAITING}' AND {PREFIX}at < "
                f"arrow_cast('{at}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
            )
            folders = base.dataset.to_table([FOLDER], filter=where)[FOLDER].unique().to_pylist()
            if kept := ", ".join(repr(folder) for folder in folders if folder in stored):
                where += f" AND {FOLDER} NOT IN ({kept})"
            deleted = base.dataset.count_rows(filter=where)
            if deleted:
                self._commit(base, lambda dataset: dataset.delete(where))

        self._repeat(delete)
        return deleted

    def _open_base(self) -> BaseTable | None:
        try:
            return open_base(self.location)
        except TableSetupError as error:
            if isinstance(error.__cause__, ObjectNotFoundError):
                return None
            raise

    def _repeat(
        self, step: Callable[[BaseTable], None], *, create: pa.Schema | None = None
    ) -> None:
        """Run a step on the latest version; repeat it while other commits get in between."""

        def attempt() -> None:
            base = self._open_base()
            if base is None:
                if create is None:
                    return
                # TableSetupError: another writer has created it in the meantime.
                with suppress(TableSetupError):
                    create_durably(self.location, create.empty_table())
                raise LostRaceError("the quarantine was just created: read it")
            with lance_errors(f"reading {self.location}"):
                step(base)

        retry_lost_races(
            attempt,
            exhausted=ConflictError(
                f"every attempt to write to {self.location} met other commits; try again later"
            ),
        )

    def _commit(self, base: BaseTable, change: Callable[[lance.LanceDataset], object]) -> None:
        """Commit directly behind the version that was read, so that no row is inserted twice."""
        doing = f"writing to {self.location}"
        commit_durably(base, change, doing=doing, accept=lambda version: False)


def _origin_filter(origins: Collection[RowOrigin]) -> str:
    """Build the filter that selects some rows."""
    by_generation: dict[tuple[UUID, str], list[int]] = {}
    for origin in origins:
        by_generation.setdefault((origin.region_id, origin.folder), []).append(origin.row)
    parts = [
        f"({_ORIGIN[0]} = '{region}' AND {_ORIGIN[1]} = '{folder}' AND "
        f"{_ORIGIN[2]} IN ({', '.join(map(str, rows))}))"
        for (region, folder), rows in by_generation.items()
    ]
    return f"({' OR '.join(parts)})"


def origins_of(rows: pa.Table) -> list[RowOrigin]:
    """Return the origin of each row that :meth:`Quarantine.read` returned in ``rows``.

    Raises
    ------
    CorruptDataError
        A value is not an origin; filters are built from origins.
    """
    values = zip(*(rows.column(name).to_pylist() for name in _ORIGIN), strict=True)
    try:
        return [RowOrigin.parse(f"{region}/{folder}/{row}") for region, folder, row in values]
    except InvalidInputError as error:
        raise CorruptDataError(
            f"the quarantine holds what no merge put there: {error}; delete these rows with Lance"
        ) from error


def original_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Restore the original rows, in the columns that the table has now."""
    return _cast_to_schema(
        rows.select([name for name in rows.schema.names if name in schema.names]), schema, None
    )


def missing_part(
    kind: pa.DataType, other: pa.DataType, *, addable: bool = False
) -> pa.DataType | None:
    """Return the fields of a nested type that another one lacks, or has as narrower floats.

    ``None`` if there are none, at any depth. Arrow's cast drops or rounds such values without an
    error. With ``addable``, only fields that Lance can add to the other type.
    """
    kind, other = (getattr(one, "storage_type", one) for one in (kind, other))
    if pt.is_floating(kind) and pt.is_floating(other):
        return kind if kind.bit_width > other.bit_width and not addable else None
    if pt.is_struct(kind) != pt.is_struct(other) or not other.num_fields:
        return None
    # Lance adds no fields within maps and vectors, and within large lists unreadable ones.
    if addable and (kind.id != other.id or not (pt.is_struct(kind) or pt.is_list(kind))):
        return None
    missing = []
    for field in (kind.field(number) for number in range(kind.num_fields)):
        number = other.get_field_index(field.name) if pt.is_struct(kind) else 0
        part = (
            field.type
            if number < 0
            else missing_part(field.type, other.field(number).type, addable=addable)
        )
        if part is not None:
            missing.append(pa.field(field.name, part))
    return with_children(kind, missing) if missing else None


def _cast_to_schema(rows: pa.Table, schema: pa.Schema, location: TableLocation | None) -> pa.Table:
    columns = []
    for field in schema:
        if field.name not in rows.schema.names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(field.name)
        try:
            if location is not None and missing_part(column.type, field.type) is not None:
                raise pa.ArrowInvalid("the cast would lose values")
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            where = f" of {location}" if location is not None else ""
            raise TableSetupError(
                f"column {field.name}{where} is {field.type} and cannot take {column.type}; give "
                "the quality rules another quarantine_uri"
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)


def describe_rows(
    rows: pa.Table, primary_key: Sequence[str], *, values: bool = False
) -> list[JsonObject]:
    """Describe rows of the quarantine as JSON: origin, time, reason and key, or all values."""
    own = [name for name in rows.schema.names if not name.startswith(PREFIX)]
    keys = keys_as_json(rows.select([name for name in primary_key if name in own]))
    whole = keys_as_json(rows.select(own)) if values else [None] * len(keys)
    described = []
    for origin, at, state, reason, key, row in zip(
        origins_of(rows),
        rows.column(f"{PREFIX}at").to_pylist(),
        rows.column(_STATE).to_pylist(),
        rows.column(f"{PREFIX}reason").to_pylist(),
        keys,
        whole,
        strict=True,
    ):
        described.append(
            {
                "origin": str(origin),
                "at": at.isoformat(),
                "state": state,
                "key": key,
                "reason": reason,
                **({"row": row} if values else {}),
            }
        )
    return described
