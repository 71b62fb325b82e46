"""Region spec: the rule that maps rows to regions (spec: Region Spec)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from memwal.boundary.public import public
from memwal.errors import InvalidInputError, TableSetupError
from memwal.format.memwal_index import StoredRegionSpec
from memwal.region.spec_fields import PENDING, RegionField, field_from_stored, is_pending
from memwal.region.sql_transform import Expression
from memwal.region.transforms import (
    MAX_BUCKETS,
    Bucket,
    CalendarPart,
    Identity,
    MultiBucket,
    Transform,
    Truncate,
    Unsharded,
)

REGION_FIELD_ID: Final = "bucket"
"""Name of the value of a spec with one field. Lance uses it for every transform."""

MAX_FIELDS: Final = 16
"""Maximum number of fields of a spec."""

# Transforms that LanceDB supports.
_LANCEDB_TRANSFORMS: Final = (Bucket, Identity, Unsharded)


@public
@dataclasses.dataclass(frozen=True, slots=True)
class RegionSpec:
    """Rule that maps rows to regions. Created by :meth:`bucket` or another class method.

    LanceDB supports ``bucket``, ``identity`` and ``unsharded`` of one column. It refuses to write
    to a table with any other spec, and to one with several specs. Tables store other specs as SQL
    expressions.

    Parameters
    ----------
    fields : tuple of RegionField
        The values that together identify a region.
    spec_id : int, default 1
        Id in the table that the spec was read from. The ids of regions that LanceDB does not
        support depend on it. Specs that differ only in it are equal.
    pending : bool, default False
        Whether the spec is not in force yet, because regions of an earlier spec are still being
        emptied. See ``memwal.add_region_spec``.

    Raises
    ------
    InvalidInputError
        The fields cannot be combined, or there are too many.
    """

    fields: tuple[RegionField, ...]
    pending: bool = False
    spec_id: int = dataclasses.field(default=1, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.fields) <= MAX_FIELDS:
            raise InvalidInputError(
                f"a region spec has 1 to {MAX_FIELDS} fields, got {len(self.fields)}"
            )
        names = [field.field_id for field in self.fields]
        if not all(names) or len(set(names)) != len(names):
            raise InvalidInputError(
                f"the fields of a region spec need names of their own, got {', '.join(names)}"
            )
        if len(self.fields) > 1 and any(isinstance(f.transform, Unsharded) for f in self.fields):
            raise InvalidInputError(
                "'unsharded' keeps all rows together and cannot be combined with other fields"
            )

    @classmethod
    def bucket(cls, column: str, num_buckets: int, *, immutable: bool = False) -> RegionSpec:
        """Spread rows evenly over a fixed number of regions by the hash of a key column.

        Parameters
        ----------
        column : str
            A column of the primary key, of a type that Lance hashes.
        num_buckets : int
            Number of regions, from 1 to 1024. Changing it needs a new spec, see
            ``memwal.add_region_spec``. Each region that is written to costs its writer a MemTable
            and a WAL entry (one PUT) per flush of the log. Each region has one writer at a time, so
            the number also limits how many processes can write.
        immutable : bool, default False
            Whether the column may be outside of the primary key, because it never changes for a
            key; deletes then have to provide it too. memwal cannot check this promise: if it is
            broken, two regions contain one key and merge in any order, and an older row can win.
        """
        return cls._of(Bucket(num_buckets), column, immutable=immutable)

    @classmethod
    def multi_bucket(
        cls, columns: str | Sequence[str], num_buckets: int, *, immutable: bool = False
    ) -> RegionSpec:
        """Spread rows over a fixed number of regions by the hash of several columns together.

        Parameters
        ----------
        columns : str or sequence of str
            Columns of the primary key. The other parameters are those of :meth:`bucket`.
        """
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        return cls._of(MultiBucket(num_buckets), *names, immutable=immutable)

    @classmethod
    def identity(cls, column: str, *, immutable: bool = False) -> RegionSpec:
        """Give every value of a key column a region of its own.

        Parameters
        ----------
        column : str
            A column of the primary key with few values. Each new value creates a region, so only
            the column limits their number. LanceDB supports booleans, integers and text.
        immutable : bool, default False
            As for :meth:`bucket`.
        """
        return cls._of(Identity(), column, immutable=immutable)

    @classmethod
    def year(cls, column: str, *, immutable: bool = False) -> RegionSpec:
        """Divide by the year of a date, a timestamp or an ISO 8601 text, in UTC.

        A primary key cannot contain dates: the column is a text of the key, or ``immutable``.

        Parameters
        ----------
        column : str
            Date, timestamp or ISO 8601 text.
        immutable : bool, default False
            As for :meth:`bucket`.
        """
        return cls._of(CalendarPart("year"), column, immutable=immutable)

    @classmethod
    def month(cls, column: str, *, immutable: bool = False) -> RegionSpec:
        """Divide by the month, 1 to 12, of any year. See :meth:`year`."""
        return cls._of(CalendarPart("month"), column, immutable=immutable)

    @classmethod
    def day(cls, column: str, *, immutable: bool = False) -> RegionSpec:
        """Divide by the day of the month, 1 to 31. See :meth:`year`."""
        return cls._of(CalendarPart("day"), column, immutable=immutable)

    @classmethod
    def hour(cls, column: str, *, immutable: bool = False) -> RegionSpec:
        """Divide by the hour of the day, 0 to 23. See :meth:`year`."""
        return cls._of(CalendarPart("hour"), column, immutable=immutable)

    @classmethod
    def truncate(cls, column: str, width: int, *, immutable: bool = False) -> RegionSpec:
        """Divide by the first ``width`` characters, or by numbers rounded towards zero.

        Parameters
        ----------
        column : str
            Text, binary, an integer or a decimal.
        width : int
            Number of characters of text or bytes of binary; numbers are rounded to multiples of it.
        immutable : bool, default False
            As for :meth:`bucket`.
        """
        return cls._of(Truncate(width), column, immutable=immutable)

    @classmethod
    def expression(
        cls,
        sql: str,
        columns: str | Sequence[str],
        result_type: pa.DataType,
        *,
        immutable: bool = False,
    ) -> RegionSpec:
        """Divide by a SQL expression, which DataFusion evaluates (extra ``expressions``).

        Parameters
        ----------
        sql : str
            Expression over ``col0``, ``col1``, ..., for example ``lower(left(col0, 2))``. Allowed
            functions: :data:`memwal.expressions.region_sql.FUNCTIONS`.
        columns : str or sequence of str
            The columns behind ``col0``, ``col1``, ...
        result_type : pyarrow.DataType
            Type of the region value.
        immutable : bool, default False
            As for :meth:`bucket`.
        """
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        return cls._of(Expression(sql, result_type, len(names)), *names, immutable=immutable)

    @classmethod
    def unsharded(cls) -> RegionSpec:
        """Keep all rows in one region, which has one writer at a time."""
        return cls._of(Unsharded())

    @classmethod
    def combine(cls, *specs: RegionSpec) -> RegionSpec:
        """Divide by several values together: one region for each combination.

        ``RegionSpec.combine(RegionSpec.identity("tenant"), RegionSpec.bucket("id", 4))`` spreads
        each tenant's rows over four regions.

        Parameters
        ----------
        *specs : RegionSpec
            The combined spec has the fields of all of them.
        """
        parts = [field for spec in specs for field in spec.fields]
        names: list[str] = []
        for field in parts:
            kind = field.transform.name or "expression"
            name = "_".join((*(column or "dropped" for column in field.columns), kind))
            taken = sum(other == name or other.startswith(f"{name}_") for other in names)
            names.append(name if not taken else f"{name}_{taken + 1}")
        return cls(
            tuple(
                RegionField(name, part.columns, part.transform, part.immutable)
                for name, part in zip(names, parts, strict=True)
            )
        )

    @classmethod
    def _of(cls, transform: Transform, *columns: str, immutable: bool = False) -> RegionSpec:
        return cls((RegionField(REGION_FIELD_ID, columns, transform, immutable),))

    def __str__(self) -> str:
        return ", ".join(str(field) for field in self.fields)

    @property
    def columns(self) -> tuple[str, ...]:
        """Source columns that the table still has, each once."""
        return _distinct(column for field in self.fields for column in field.columns)

    @property
    def columns_beside_key(self) -> tuple[str, ...]:
        """Immutable source columns, which may be outside of the primary key."""
        return _distinct(
            column for field in self.fields if field.immutable for column in field.columns
        )

    @property
    def num_regions(self) -> int:
        """Number of regions; 0 if it depends on the data, or is too large, as Lance stores it."""
        count = prod(field.transform.num_values or 0 for field in self.fields)
        return count if count <= MAX_BUCKETS else 0

    def is_shared_with_lance(self, schema: pa.Schema) -> bool:
        """Return whether LanceDB can write to the same table, so that region ids must be its own.

        LanceDB supports a single spec of one field, with id 1, and fewer types for ``identity``.
        """
        (first, *others) = self.fields
        if self.spec_id != 1 or others or not isinstance(first.transform, _LANCEDB_TRANSFORMS):
            return False
        if not isinstance(first.transform, Identity):
            return True
        value_type = first.value_type(schema)
        return bool(
            pt.is_boolean(value_type)
            or pt.is_integer(value_type)
            or pt.is_string(value_type)
            or pt.is_large_string(value_type)
        )

    def check_keys(self, primary_key: Sequence[str]) -> None:
        """Check that a primary key always maps to the same region, so that rows can be written.

        Otherwise two regions could have rows of one key. They merge in any order, and the older row
        could win. Without a primary key, any column may divide the rows. Raises InvalidInputError
        if a region column is not part of the primary key, and TableSetupError if one was dropped,
        or the spec is not in force yet.
        """
        if self.pending:
            raise TableSetupError(
                f"the table is changing to the region spec {self}, and takes no writes until the "
                "regions of the earlier spec are empty; finish with memwal.add_region_spec(uri, "
                "spec) or the command memwal add-region-spec"
            )
        for field in self.fields:
            if None in field.columns:
                raise TableSetupError(
                    f"a source column of {field} was dropped from the table, so that rows of one "
                    "key could land in two regions; divide the table anew with "
                    "memwal.add_region_spec(uri, spec) or the command memwal add-region-spec"
                )
            outside = [name for name in field.columns if name not in primary_key]
            if outside and primary_key and not field.immutable:
                raise InvalidInputError(
                    f"region column {outside[0]!r} is not part of the primary key "
                    f"({', '.join(primary_key)}), so rows of one key could land in two regions; "
                    "divide by a key column, or use RegionSpec.unsharded()"
                )

    def value_types(self, schema: pa.Schema) -> tuple[pa.DataType, ...]:
        """Return the type of each region value in a table, after checking its source columns.

        Raises InvalidInputError if the table has no such top-level column, or its type is not
        supported.
        """
        return tuple(field.value_type(schema) for field in self.fields)

    def bind(
        self, field_ids: Mapping[str, int], schema: pa.Schema, *, spec_id: int | None = None
    ) -> StoredRegionSpec:
        """Return the stored form of this spec; LanceDB stores the same for the specs that it
        supports.

        ``field_ids`` are the Lance field ids of the top-level columns of the table. ``spec_id`` is
        positive and never reused in a table; LanceDB supports only 1. Raises InvalidInputError if
        it is not positive, or a region column is missing or has an unsupported type.
        """
        if spec_id is None:
            spec_id = self.spec_id
        if spec_id < 1:
            raise InvalidInputError(f"the id of a region spec must be positive, got {spec_id}")
        parameters = {PENDING: "true"} if self.pending else {}
        return StoredRegionSpec(
            spec_id=spec_id,
            fields=tuple(field.bind(field_ids, schema, parameters) for field in self.fields),
        )

    @classmethod
    def from_stored(cls, stored: StoredRegionSpec, field_names: Mapping[int, str]) -> RegionSpec:
        """Decode the stored form of a spec, given the top-level columns by Lance field id.

        Raises InvalidInputError if the spec is not supported, and CorruptDataError if it lacks a
        required part, or contradicts itself.
        """
        where = f"region spec {stored.spec_id}"
        if not stored.fields:
            raise InvalidInputError(f"{where} divides the table by nothing, which is not supported")
        fields = (
            field_from_stored(field, field_names, where=f"{where}, field {field.field_id!r}")
            for field in stored.fields
        )
        return cls(tuple(fields), pending=is_pending(stored), spec_id=stored.spec_id)


def _distinct(columns: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(column for column in columns if column is not None))
