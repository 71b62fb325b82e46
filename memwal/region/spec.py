"""How the rows of a table are divided into regions (spec: Region Spec)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from memwal.errors import CorruptDataError, InvalidInputError, TableSetupError
from memwal.format.index_details import RegionFieldSpec, StoredRegionSpec
from memwal.region.bucketing import BUCKETABLE_TYPES, is_bucketable

REGION_FIELD_ID: Final = "bucket"
"""Name of the region value. Lance uses this one for every transform, so LanceDB finds it."""

MAX_BUCKETS: Final = 1024
"""The most buckets Lance sets a table up with."""

_NUM_BUCKETS: Final = "num_buckets"
_COLUMN: Final = "column"

# Arrow types whose values can name a region, by the name Lance gives the type.
_IDENTITY_TYPES: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.uint8(): "uint8",
    pa.uint16(): "uint16",
    pa.uint32(): "uint32",
    pa.uint64(): "uint64",
    pa.string(): "utf8",
    pa.large_string(): "large_utf8",
}


@dataclass(frozen=True, slots=True)
class RegionSpec:
    """How rows map to regions. Make one with :meth:`bucket`, :meth:`identity` or :meth:`unsharded`.

    Parameters
    ----------
    transform : {"bucket", "identity", "unsharded"}
        How the region is computed from a row.
    column : str or None, default None
        The column it is computed from; None when rows are not divided.
    num_buckets : int or None, default None
        Number of buckets; None unless the transform is ``bucket``.

    Raises
    ------
    InvalidInputError
        If the parts do not belong together or are out of range.
    """

    transform: Literal["bucket", "identity", "unsharded"]
    column: str | None = None
    num_buckets: int | None = None

    def __post_init__(self) -> None:
        if self.transform not in ("bucket", "identity", "unsharded"):
            raise InvalidInputError(
                f"there is no region transform {self.transform!r}; "
                "use 'bucket', 'identity' or 'unsharded'"
            )
        if self.transform == "unsharded":
            if self.column is not None:
                raise InvalidInputError(
                    f"an unsharded region spec takes no column, got {self.column!r}; leave it out"
                )
        elif not self.column or not isinstance(self.column, str):
            raise InvalidInputError(
                f"a region spec of transform {self.transform!r} needs the name of a column, "
                f"got {self.column!r}"
            )
        if self.transform != "bucket":
            if self.num_buckets is not None:
                raise InvalidInputError(
                    f"a region spec of transform {self.transform!r} has no buckets, "
                    f"got num_buckets={self.num_buckets!r}; leave it out"
                )
        elif (
            not isinstance(self.num_buckets, int)
            or isinstance(self.num_buckets, bool)
            or not 1 <= self.num_buckets <= MAX_BUCKETS
        ):
            raise InvalidInputError(
                f"num_buckets must be an integer between 1 and {MAX_BUCKETS}, "
                f"got {self.num_buckets!r}"
            )

    @classmethod
    def bucket(cls, column: str, num_buckets: int) -> RegionSpec:
        """Spread rows evenly over a fixed number of regions by the hash of a key column.

        Parameters
        ----------
        column : str
            A column of the primary key. Its type must be one that Lance hashes.
        num_buckets : int
            Number of regions, from 1 to 1024. It cannot change later: rows that were written under
            another number would be looked for in the wrong region. Each region that is written to
            costs its writer a MemTable and a log entry (one PUT) per flush of the log, and each
            has one writer at a time, so the number also bounds how many processes can write.
        """
        return cls("bucket", column, num_buckets)

    @classmethod
    def identity(cls, column: str) -> RegionSpec:
        """Give every value of a key column a region of its own.

        Parameters
        ----------
        column : str
            A column of the primary key with few values: booleans, integers or text, never null.
            Regions appear as values do, so their number has no bound but the column's.
        """
        return cls("identity", column)

    @classmethod
    def unsharded(cls) -> RegionSpec:
        """Keep all rows in one region, which has one writer at a time."""
        return cls("unsharded")

    def __str__(self) -> str:
        arguments = (str(part) for part in (self.column, self.num_buckets) if part is not None)
        return f"{self.transform}({', '.join(arguments)})"

    @property
    def num_regions(self) -> int:
        """How many regions there will be; 0 when only the data can tell, as Lance records it."""
        match self.transform:
            case "bucket":
                return self.num_buckets or 0
            case "identity":
                return 0
            case "unsharded":
                return 1

    def check_keys(self, primary_key: Sequence[str]) -> None:
        """Check that a primary key always maps to the same region.

        Two regions with rows of one key merge in any order, and the older row could win.

        Raises
        ------
        InvalidInputError
            If the region column is not part of the primary key.
        """
        if self.column is not None and self.column not in primary_key:
            raise InvalidInputError(
                f"region column {self.column!r} is not part of the primary key "
                f"({', '.join(primary_key)}), so rows of one key could land in two regions; "
                "divide by a key column, or use RegionSpec.unsharded()"
            )

    def column_type(self, schema: pa.Schema) -> pa.DataType | None:
        """Return the type of the region column in a table, after checking that it can be used.

        Parameters
        ----------
        schema : pyarrow.Schema
            Schema of the table, as the table itself tells it.

        Returns
        -------
        pyarrow.DataType or None
            None when rows are not divided.

        Raises
        ------
        InvalidInputError
            If the table has no such column at the top level, or cannot be divided by its type.
        """
        if self.column is None:
            return None
        position = schema.get_field_index(self.column)
        if position < 0:
            raise InvalidInputError(
                f"region column {self.column!r} is not one of the columns at the top of the table: "
                f"{', '.join(schema.names)}"
            )
        data_type = schema.field(position).type
        if self.transform == "bucket":
            usable, types = is_bucketable(data_type), BUCKETABLE_TYPES
        else:
            usable = data_type in _IDENTITY_TYPES
            types = ", ".join(str(known) for known in _IDENTITY_TYPES)
        if not usable:
            raise InvalidInputError(
                f"column {self.column!r} of type {data_type} cannot divide a table into regions "
                f"by {self.transform!r}; use a column of one of these types: {types}"
            )
        return data_type

    def bind(
        self, field_ids: Mapping[str, int], schema: pa.Schema, *, spec_id: int = 1
    ) -> StoredRegionSpec:
        """Return what the table stores of this spec, equal to what LanceDB would store.

        Parameters
        ----------
        field_ids : mapping of str to int
            Lance field id of each top-level column of the table.
        schema : pyarrow.Schema
            Schema of the table.
        spec_id : int, default 1
            Id of the spec, positive and never used twice in a table. LanceDB knows only 1.

        Raises
        ------
        InvalidInputError
            If the region column is missing or cannot be used, or the id is not positive.
        """
        if spec_id < 1:
            raise InvalidInputError(f"the id of a region spec must be positive, got {spec_id}")
        data_type = self.column_type(schema)
        if self.column is not None and self.column not in field_ids:
            raise InvalidInputError(
                f"no field id is known for region column {self.column!r}; "
                "pass the field ids of the table that is set up"
            )
        field = RegionFieldSpec(
            field_id=REGION_FIELD_ID,
            source_ids=() if self.column is None else (field_ids[self.column],),
            transform=self.transform,
            expression=None,
            result_type=_IDENTITY_TYPES[data_type] if self.transform == "identity" else "int32",
            parameters={} if self.num_buckets is None else {_NUM_BUCKETS: str(self.num_buckets)},
        )
        return StoredRegionSpec(spec_id=spec_id, fields=(field,))

    @classmethod
    def from_stored(cls, stored: StoredRegionSpec, field_names: Mapping[int, str]) -> RegionSpec:
        """Read a spec that a table stores.

        Parameters
        ----------
        stored : StoredRegionSpec
            As the details of the MemWAL index hold it.
        field_names : mapping of int to str
            Name of each top-level column of the table by its Lance field id.

        Raises
        ------
        InvalidInputError
            If the table is divided in a way that is not supported.
        TableSetupError
            If the region column is no longer in the table.
        CorruptDataError
            If the stored spec lacks a part it must have, or contradicts itself.
        """
        where = f"region spec {stored.spec_id}"
        if len(stored.fields) != 1:
            raise InvalidInputError(
                f"{where} divides the table by {len(stored.fields)} values; only specs of exactly "
                "one are supported"
            )
        field = stored.fields[0]
        where = f"{where}, field {field.field_id!r}"
        match field.transform:
            case "unsharded":
                return cls.unsharded()
            case "identity":
                return cls.identity(_source_column(field, field_names, where=where))
            case "bucket":
                column = _source_column(field, field_names, where=where)
                return cls.bucket(column, _stored_num_buckets(field, where=where))
            case None:
                raise InvalidInputError(
                    f"{where}: the region expression {field.expression!r} is not supported; "
                    "only the transforms bucket, identity and unsharded are"
                )
            case _:
                raise InvalidInputError(
                    f"{where}: the region transform {field.transform!r} is not supported; "
                    "only bucket, identity and unsharded are"
                )


def _source_column(field: RegionFieldSpec, names: Mapping[int, str], *, where: str) -> str:
    if len(field.source_ids) != 1:
        raise CorruptDataError(
            f"{where}: the transform {field.transform!r} takes one source column, but the table "
            f"stores {len(field.source_ids)}; look at how the table was set up"
        )
    source_id = field.source_ids[0]
    if source_id not in names:
        raise TableSetupError(
            f"{where}: the source column with field id {source_id} is not at the top level of the "
            "table; it was dropped or is nested, so rows cannot be assigned to regions"
        )
    # Lance lets this parameter win over the field id, blank or not.
    override = field.parameters.get(_COLUMN, "")
    if override.strip() and override != names[source_id]:
        raise CorruptDataError(
            f"{where}: the source column is {names[source_id]!r} by its field id but {override!r} "
            "by its name; look at how the table was set up"
        )
    return names[source_id]


def _stored_num_buckets(field: RegionFieldSpec, *, where: str) -> int:
    text = field.parameters.get(_NUM_BUCKETS, "")
    if not (text.isascii() and text.isdecimal()):
        raise CorruptDataError(
            f"{where}: the transform 'bucket' needs the parameter {_NUM_BUCKETS!r} as a number, "
            f"but the table stores {text!r}; look at how the table was set up"
        )
    return int(text)
