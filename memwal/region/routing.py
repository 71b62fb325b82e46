"""Splitting batches of rows into one part per region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memwal.errors import InvalidInputError
from memwal.region.bucketing import bucket
from memwal.region.region_ids import UNSHARDED_ID, bucket_region_id, identity_region_id
from memwal.region.spec import REGION_FIELD_ID, RegionSpec


@dataclass(frozen=True, slots=True)
class RegionAssignment:
    """A region and the region values that all of its rows share.

    Attributes
    ----------
    region_id : UUID
        The id LanceDB derives for the same rows.
    field_values : tuple of (str, bytes)
        Field id and value of each region field as the region manifest holds them: bucket numbers
        as 4 bytes, integers in the width of their column, both little-endian; booleans one byte;
        text in UTF-8. Empty when rows are not divided.
    """

    region_id: UUID
    field_values: tuple[tuple[str, bytes], ...]


_UNSHARDED: Final = RegionAssignment(UNSHARDED_ID, ())


class Router:
    """Assigns rows to regions.

    Parameters
    ----------
    spec : RegionSpec
        How the table is divided.
    schema : pyarrow.Schema
        Schema of the table.

    Raises
    ------
    InvalidInputError
        If the table cannot be divided this way.
    """

    __slots__ = ("_assignments", "_column_type", "_spec")

    def __init__(self, spec: RegionSpec, schema: pa.Schema) -> None:
        self._spec = spec
        self._column_type = spec.column_type(schema)
        self._assignments: list[RegionAssignment] | None
        match spec.transform:
            case "bucket":
                self._assignments = [_of_bucket(number) for number in range(spec.num_regions)]
            case "identity":
                self._assignments = None
            case "unsharded":
                self._assignments = [_UNSHARDED]

    def assignments(self) -> list[RegionAssignment] | None:
        """Return all regions, in the order of bucket numbers; None when only the data tells."""
        return None if self._assignments is None else list(self._assignments)

    def regions_of(self, values: pa.Array) -> list[RegionAssignment]:
        """Return the regions that can hold rows with one of these values, each once.

        Parameters
        ----------
        values : pyarrow.Array
            Values of the region column, in exactly its type. When rows are not divided they do not
            matter, and the answer is the only region.

        Raises
        ------
        InvalidInputError
            If the values are of another type or, in an identity column, null.
        """
        if self._column_type is None:
            return [_UNSHARDED]
        self._check_type(values.type)
        if len(values) == 0:
            return []
        codes, regions = self._classify(values)
        return [regions[code] for code in np.unique(codes).tolist()]

    def route(
        self, data: pa.RecordBatch | pa.Table
    ) -> list[tuple[RegionAssignment, pa.RecordBatch]]:
        """Split rows by region.

        Parameters
        ----------
        data : pyarrow.RecordBatch or pyarrow.Table
            Rows with the region column in exactly the type that it has in the table: the same
            number in another width hashes into another bucket.

        Returns
        -------
        list of (RegionAssignment, pyarrow.RecordBatch)
            One part per region that occurs, in the order of bucket numbers or of first occurrence.
            Rows keep their order within a part. A batch whose rows are all of one region is
            returned itself; otherwise every part is a copy, so that each can be freed alone.

        Raises
        ------
        InvalidInputError
            If the region column is absent, of another type or, in an identity column, null; or if
            a table is too large for one batch.
        """
        self._check_rows(data.schema)
        if data.num_rows == 0:
            return []
        batch = data if isinstance(data, pa.RecordBatch) else _to_batch(data)
        if self._column_type is None:
            return [(_UNSHARDED, batch)]
        codes, regions = self._classify(batch.column(self._spec.column))
        sizes = np.bincount(codes, minlength=len(regions))
        first = int(codes[0])
        if sizes[first] == batch.num_rows:
            return [(regions[first], batch)]
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(sizes)
        return [
            (regions[code], batch.take(pa.array(order[ends[code] - sizes[code] : ends[code]])))
            for code in np.flatnonzero(sizes).tolist()
        ]

    def _check_rows(self, schema: pa.Schema) -> None:
        if self._column_type is None:
            return
        position = schema.get_field_index(self._spec.column)
        if position < 0:
            raise InvalidInputError(
                f"the rows have no region column {self._spec.column!r}, or have it twice; "
                f"their columns are {', '.join(schema.names)}"
            )
        self._check_type(schema.field(position).type)

    def _check_type(self, data_type: pa.DataType) -> None:
        if data_type != self._column_type:
            raise InvalidInputError(
                f"region column {self._spec.column!r} has type {data_type} in the rows but "
                f"{self._column_type} in the table; cast the rows to the schema of the table"
            )

    def _classify(self, column: pa.Array) -> tuple[NDArray[Any], Sequence[RegionAssignment]]:
        """Return an index per row, and the regions that the indexes stand for."""
        if self._assignments is not None:
            numbers = bucket(column, len(self._assignments))
            # Numpy sorts integers of 16 bits by radix, which takes a tenth of the time.
            return numbers.astype(np.uint16), self._assignments
        if column.null_count:
            raise InvalidInputError(
                f"region column {self._spec.column!r} has {column.null_count} nulls, and null "
                "names no region; fill them before writing"
            )
        encoded = column.dictionary_encode()
        values = _identity_bytes(encoded.dictionary)
        return encoded.indices.to_numpy(), [
            RegionAssignment(identity_region_id(value), ((REGION_FIELD_ID, value),))
            for value in values
        ]


def _of_bucket(number: int) -> RegionAssignment:
    value = number.to_bytes(4, "little")
    return RegionAssignment(bucket_region_id(number), ((REGION_FIELD_ID, value),))


def _identity_bytes(values: pa.Array) -> list[bytes]:
    """Encode distinct values, none of them null."""
    data_type = values.type
    if pa.types.is_boolean(data_type):
        return [bytes([value]) for value in values.to_pylist()]
    if pa.types.is_integer(data_type):
        width = data_type.byte_width
        packed = values.to_numpy().tobytes()
        return [packed[start : start + width] for start in range(0, len(packed), width)]
    binary = pa.binary() if pa.types.is_string(data_type) else pa.large_binary()
    return list(values.cast(binary).to_pylist())


def _to_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    try:
        return pa.concat_batches(batches)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"a table of {table.num_rows} rows does not fit into one batch ({error}); "
            "pass it in smaller pieces, such as those of table.to_batches()"
        ) from error
