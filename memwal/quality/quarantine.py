"""The table of the rows that were kept out: a plain Lance table beside the one they belong to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self
from uuid import UUID

import lance
import numpy as np
import pyarrow as pa

from memwal.base_table.commit import commit_durably, create_durably, is_conflict
from memwal.base_table.snapshot import (
    BaseTable,
    base_from_dataset,
    open_base,
    open_dataset,
    translate_lance_error,
)
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    TableSetupError,
)
from memwal.format.paths import parse_generation_name
from memwal.quality.expectations import Expectation, suite_digest
from memwal.quality.gate import Quarantined
from memwal.quality.rules import quarantine_beside
from memwal.storage.location import TableLocation
from memwal.util.retry import LostRaceError, retry_lost_races

PREFIX = "quarantine_"
FOLDER = f"{PREFIX}folder"
"""Column with the name of the folder of the generation that a row was kept out of."""
_ORIGIN = (f"{PREFIX}region", FOLDER, f"{PREFIX}row")
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
_MAX_ATTEMPTS = 50
_CONFLICT_WAIT_SECONDS = 0.05


class State(StrEnum):
    """What became of a row that was kept out."""

    WAITING = "waiting"
    RELEASED = "released"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """Where a row came from: its key in the quarantine.

    The folder of a generation has a name that nothing else has, unlike its number and that of its
    region: other tables have those as well, and so has one that is made anew in the same place.
    """

    region_id: UUID
    folder: str
    row: int

    def __str__(self) -> str:
        return f"{self.region_id}/{self.folder}/{self.row}"

    @property
    def generation(self) -> int:
        """Number of the generation."""
        return parse_generation_name(self.folder) or 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what :meth:`__str__` gives.

        Raises
        ------
        InvalidInputError
            It is not of the form REGION/FOLDER/ROW.
        """
        try:
            region, folder, row = text.split("/")
            found = cls(UUID(region), folder, int(row))
        except ValueError:
            found = None
        if found is None or parse_generation_name(found.folder) is None:
            raise InvalidInputError(
                f"{text!r} is not the origin of a row: REGION/FOLDER/ROW, as lists show it"
            )
        return found


def quarantined_rows(
    region_id: UUID, found: Quarantined, *, suite: Sequence[Expectation]
) -> pa.Table:
    """Rows of the quarantine table for what was kept out of a region."""
    rows = found.rows
    taken = [name for name in rows.schema.names if name.startswith(PREFIX)]
    if taken:
        raise InvalidInputError(
            f"the table has the column {taken[0]}, whose name the quarantine needs; rename it, or "
            "choose another quality mode"
        )
    count = rows.num_rows
    reasons = _reasons(found, count)
    meta = {
        _ORIGIN[0]: [str(region_id)] * count,
        _ORIGIN[1]: found.folders,
        _ORIGIN[2]: found.positions,
        _GENERATION: found.generations,
        _STATE: [State.WAITING.value] * count,
        f"{PREFIX}at": [datetime.now(UTC)] * count,
        f"{PREFIX}expectations": reasons[0],
        f"{PREFIX}reason": reasons[1],
        f"{PREFIX}suite": [suite_digest(suite)] * count,
    }
    whole = pa.table(meta, schema=_META)
    # Without what makes a key of a column of the table: here another one is the key.
    for field, column in zip(rows.schema, rows.columns, strict=True):
        whole = whole.append_column(pa.field(field.name, field.type), column)
    return whole


def _reasons(found: Quarantined, count: int) -> tuple[pa.Array, pa.Array]:
    """Of each row the expectations that it fails, as a list and as a text."""
    labels = [str(expectation) for expectation, _ in found.failures]
    names = [
        f"{expectation.type}({', '.join(expectation.columns)})" for expectation, _ in found.failures
    ]
    masks = np.stack([mask for _, mask in found.failures], axis=1) if labels else None
    if masks is None or not count:
        return pa.nulls(count, pa.list_(pa.string())), pa.nulls(count, pa.string())
    # Few combinations occur, however many rows there are.
    kinds, which = np.unique(masks, axis=0, return_inverse=True)
    combined = [np.flatnonzero(kind) for kind in kinds]
    lists = pa.array([[names[n] for n in kind] for kind in combined], pa.list_(pa.string()))
    texts = pa.array(["; ".join(labels[n] for n in kind) for kind in combined], pa.string())
    positions = pa.array(which.reshape(-1))
    return lists.take(positions), texts.take(positions)


class Quarantine:
    """The quarantine table at a location; it comes into being with the first row.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
    """

    def __init__(self, location: TableLocation) -> None:
        self.location = location

    @classmethod
    def of(cls, table: TableLocation, uri: str | None = None) -> Self:
        """The quarantine of a table: at the address, else beside it.

        Parameters
        ----------
        table : TableLocation
            ``table.location``.
        uri : str, optional
            Address of the quarantine table.
        """
        return cls(TableLocation(uri or quarantine_beside(table.uri), table.storage_options))

    def __str__(self) -> str:
        return str(self.location)

    def write(self, rows: pa.Table, *, wanted: Callable[[], bool] = lambda: True) -> bool:
        """Add rows that are not there yet, and return when they are durable.

        Parameters
        ----------
        rows : pyarrow.Table
            As of :func:`quarantined_rows`.
        wanted : callable
            Asked after the version was opened behind which they are committed, and no other.

        Returns
        -------
        bool
            False when they were not wanted any more, and nothing was written.

        Raises
        ------
        TableSetupError
            A column has changed its type.
        ConflictError
            Others kept writing.
        StoreError
            The store failed.
        """
        written = False

        def add(base: BaseTable) -> None:
            nonlocal written
            missing = [field for field in rows.schema if field.name not in base.schema.names]
            if missing:
                self._commit(base, lambda dataset: dataset.add_columns(pa.schema(missing)))
                base = open_base(self.location)
            fitting = _fitting(rows, base.schema, self.location)
            written = wanted()
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
        self, merged: Mapping[UUID, Collection[str]], *, belong: Collection[Origin] = ()
    ) -> None:
        """Take away what stands here of merged generations and was not kept out of them.

        Nothing of them can be added any more by those who ask whether it is wanted: this commits
        also when there is nothing to take away, so that whoever asked before is refused.

        Parameters
        ----------
        merged : mapping
            Of each region the names of the generations' folders.
        belong : collection of Origin
            What was kept out of them.
        """
        if not merged:
            return
        parts = [
            f"({_ORIGIN[0]} = '{region}' AND {_ORIGIN[1]} IN ({', '.join(map(repr, folders))}))"
            for region, folders in merged.items()
        ]
        where = f"({' OR '.join(parts)}) AND {_STATE} = '{State.WAITING}'"

        def take_away(base: BaseTable) -> None:
            found = base.dataset.to_table(columns=list(_ORIGIN), filter=where)
            extra = set(origins_of(found)).difference(belong)
            self._commit(base, lambda dataset: dataset.delete(_of(extra) if extra else "false"))

        self._repeat(take_away)

    def read(
        self, *, state: State | None = State.WAITING, origins: Collection[Origin] | None = None
    ) -> pa.Table:
        """Rows with all that is known of them, oldest first; an empty table when there is none.

        Parameters
        ----------
        state : State, optional
            Only those of which this became; None for all.
        origins : collection of Origin, optional
            Only these.
        """
        base = self._open()
        if base is None or (origins is not None and not origins):
            return (base.schema if base is not None else _META).empty_table()
        parts = [f"{_STATE} = '{state}'"] if state is not None else []
        if origins is not None:
            parts.append(_of(origins))
        try:
            found = base.dataset.to_table(filter=" AND ".join(parts) or None)
        except (OSError, ValueError) as error:
            raise translate_lance_error(error, f"reading {self.location}") from error
        order = (f"{PREFIX}at", _ORIGIN[0], _GENERATION, *_ORIGIN[1:])
        return found.sort_by([(name, "ascending") for name in order])

    def mark(self, origins: Collection[Origin], state: State) -> int:
        """Say what became of rows that wait; tell of how many it was not said before.

        Parameters
        ----------
        origins : collection of Origin
            Which rows, as :func:`origins_of` names them.
        state : State
            What became of them.
        """
        changed = 0

        def update(base: BaseTable) -> None:
            nonlocal changed
            where = f"{_STATE} = '{State.WAITING}' AND {_of(origins)}"
            changed = base.dataset.count_rows(filter=where)
            if changed:
                self._commit(
                    base, lambda dataset: dataset.update({_STATE: f"'{state}'"}, where=where)
                )

        if origins:
            self._repeat(update)
        return changed

    def purge(self, *, before: datetime) -> int:
        """Delete rows that were released or discarded, and kept out before a moment.

        Parameters
        ----------
        before : datetime
            Aware; rows that were kept out later stay.
        """
        deleted = 0

        def delete(base: BaseTable) -> None:
            nonlocal deleted
            at = before.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
            where = (
                f"{_STATE} != '{State.WAITING}' AND {PREFIX}at < "
                f"arrow_cast('{at}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
            )
            deleted = base.dataset.count_rows(filter=where)
            if deleted:
                self._commit(base, lambda dataset: dataset.delete(where))

        self._repeat(delete)
        return deleted

    def _open(self) -> BaseTable | None:
        try:
            dataset = open_dataset(self.location)
        except ObjectNotFoundError:
            return None
        return base_from_dataset(self.location, dataset)

    def _repeat(
        self, step: Callable[[BaseTable], None], *, create: pa.Schema | None = None
    ) -> None:
        """Do a step on the latest version, until nobody else commits in between."""

        def attempt() -> None:
            base = self._open()
            if base is None:
                if create is None:
                    return
                self._create(create)
                raise LostRaceError("the quarantine was just created: read it")
            try:
                step(base)
            except OSError as error:
                raise translate_lance_error(error, f"reading {self.location}") from error

        retry_lost_races(
            attempt,
            attempts=_MAX_ATTEMPTS,
            seconds=_CONFLICT_WAIT_SECONDS,
            exhausted=ConflictError(
                f"{_MAX_ATTEMPTS} attempts to write to {self.location} met other commits; "
                "try again later"
            ),
        )

    def _create(self, schema: pa.Schema) -> None:
        # Where somebody else was faster, it is there as well.
        with suppress(TableSetupError):
            create_durably(self.location, schema.empty_table())

    def _commit(self, base: BaseTable, change: Callable[[lance.LanceDataset], Any]) -> None:
        """Commit right behind the version that was read: two never insert the same row."""
        try:
            commit_durably(base, change, accept=lambda version: False)
        except ConflictError as error:
            raise LostRaceError(str(error)) from error
        except (OSError, RuntimeError, ValueError) as error:
            if is_conflict(error):
                raise LostRaceError(str(error)) from error
            raise translate_lance_error(error, f"writing to {self.location}") from error


def _of(origins: Collection[Origin]) -> str:
    """A filter for some rows."""
    by_generation: dict[tuple[UUID, str], list[int]] = {}
    for origin in origins:
        by_generation.setdefault((origin.region_id, origin.folder), []).append(origin.row)
    parts = [
        f"({_ORIGIN[0]} = '{region}' AND {_ORIGIN[1]} = '{folder}' AND "
        f"{_ORIGIN[2]} IN ({', '.join(map(str, rows))}))"
        for (region, folder), rows in by_generation.items()
    ]
    return f"({' OR '.join(parts)})"


def origins_of(rows: pa.Table) -> list[Origin]:
    """Where rows of the quarantine come from.

    Parameters
    ----------
    rows : pyarrow.Table
        As :meth:`Quarantine.read` returns them.

    Raises
    ------
    CorruptDataError
        Something else stands there: filters are made of origins.
    """
    found = zip(*(rows.column(name).to_pylist() for name in _ORIGIN), strict=True)
    try:
        return [Origin.parse(f"{region}/{folder}/{row}") for region, folder, row in found]
    except InvalidInputError as error:
        raise CorruptDataError(
            f"the quarantine holds what no merge put there: {error}; delete these rows with Lance"
        ) from error


def original_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows as they were, in the columns that the table has now."""
    return _fitting(
        rows.select([name for name in rows.schema.names if name in schema.names]), schema, None
    )


def _fitting(rows: pa.Table, schema: pa.Schema, location: TableLocation | None) -> pa.Table:
    columns = []
    for field in schema:
        if field.name not in rows.schema.names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            where = f" of {location}" if location is not None else ""
            raise TableSetupError(
                f"column {field.name}{where} is {field.type} and cannot take {column.type}; give "
                "the quality rules another quarantine_uri"
            ) from error
    return pa.Table.from_arrays(columns, schema=schema)


def describe(rows: pa.Table, primary_key: Sequence[str], *, values: bool = False) -> list[Any]:
    """Rows of the quarantine for people: origin, time, reason and key, or all of their values."""
    from memwal.quality.report import shown_keys

    shown = [name for name in rows.schema.names if not name.startswith(PREFIX)]
    keys = shown_keys(rows.select([name for name in primary_key if name in shown]))
    whole = shown_keys(rows.select(shown)) if values else [None] * len(keys)
    found = []
    for origin, at, state, reason, key, row in zip(
        origins_of(rows),
        rows.column(f"{PREFIX}at").to_pylist(),
        rows.column(_STATE).to_pylist(),
        rows.column(f"{PREFIX}reason").to_pylist(),
        keys,
        whole,
        strict=True,
    ):
        found.append(
            {
                "origin": str(origin),
                "at": at.isoformat(),
                "state": state,
                "key": key,
                "reason": reason,
                **({"row": row} if values else {}),
            }
        )
    return found
