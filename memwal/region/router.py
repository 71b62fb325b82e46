"""Routing of row batches to regions, and the region ids derived from region values.

Ids of new regions are derived, so that all clients of a table write to the same regions. LanceDB
has no list of regions: it computes a version-5 UUID from the name of a bucket, from an identity
value, or from a constant, under one fixed namespace. Two writers that disagree about the id of a
bucket would put one primary key into two regions, and a merge could then let the older row win.
These names are therefore part of the format.

LanceDB's names do not contain the spec, and exist for its own three transforms only. For any other
spec, the name consists of the spec id and every region value with its kind, under a namespace of
memwal; so does the name of the null of an identity column, which LanceDB does not write. Null is a
region like any other; the bucket of null is 0.

Where another client has given a region another id, the router of
:func:`memwal.lsm.region_places.router_in_force` uses that one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from memwal.errors import InvalidInputError
from memwal.format.paths import TOMBSTONE
from memwal.region.spec import RegionSpec
from memwal.region.spec_fields import RegionField
from memwal.region.transforms import Bucket, Unsharded
from memwal.region.values import decode_values, encode_for_id, encode_values

UNSHARDED_ID: Final = UUID("aa48498d-ac91-59e2-8452-69f46010ace2")
"""Id of the only region of a table with an ``unsharded`` spec: LanceDB's id for that name."""

_NAMESPACE: Final = UUID("4c534d57-5249-5445-5f53-484152443031")
_OWN_NAMESPACE: Final = UUID("6d656d77-616c-5b72-a567-696f6e732031")

# Most tables have few regions. For a column with more values than this, the cache is cleared.
_CACHED_REGIONS: Final = 65_536

# numpy sorts 16-bit integers by radix, in a tenth of the time.
_RADIX: Final = 1 << 16


RegionValues = frozenset[tuple[str, bytes]]
"""Field id and encoded value of each region field that is not null."""


@dataclass(frozen=True, slots=True)
class RegionAssignment:
    """A region, and the region values that all of its rows share.

    The region id is the one that LanceDB and memwal derive for these rows, or was chosen by hand.
    ``field_values`` has field id and value of each region field, encoded as in the region manifest:
    bucket numbers in 4 bytes, integers in the width of their column, both little-endian; booleans
    in one byte; text in UTF-8; nulls are omitted. It is empty for ``unsharded`` and for ids chosen
    by hand.
    """

    region_id: UUID
    field_values: tuple[tuple[str, bytes], ...] = ()


class Router:
    """Assigns rows to regions.

    Raises InvalidInputError if the spec does not fit the schema of the table.
    """

    def __init__(self, spec: RegionSpec, schema: pa.Schema) -> None:
        self._value_types = spec.value_types(schema)
        self._spec = spec
        self._adopted: Mapping[RegionValues, UUID] = {}
        self._has_lance_ids = spec.is_shared_with_lance(schema)
        self._sources = [(name, schema.field(name).type) for name in spec.columns]
        self._cache: dict[tuple[bytes, ...], RegionAssignment] = {}
        self._single: RegionAssignment | None = None
        if isinstance(spec.fields[0].transform, Unsharded):
            self._single = RegionAssignment(
                UNSHARDED_ID if self._has_lance_ids else derived_region_id(spec.spec_id, ())
            )
        self._all_regions = self._enumerate_regions()
        self._known: Mapping[UUID, RegionAssignment] | None = None

    @classmethod
    def to_region(cls, region_id: UUID) -> Router:
        """Return a router of all rows to one region with an id chosen by hand (spec 0)."""
        router = cls(RegionSpec.unsharded(), pa.schema([]))
        router._single = RegionAssignment(region_id)
        router._all_regions = [router._single]
        return router

    def adopting(self, regions: Mapping[RegionValues, UUID]) -> Router:
        """Return a router that uses the given regions for their values, in place of derived ids."""
        router = copy.copy(self)
        router._adopted, router._cache, router._known = regions, {}, None
        if self._single is not None:
            region_id = regions.get(frozenset(), self._single.region_id)
            router._single = RegionAssignment(region_id)
        router._all_regions = router._enumerate_regions()
        return router

    @property
    def only_region(self) -> RegionAssignment | None:
        """The region of all rows; None if the spec has more than one."""
        if self._all_regions is None or len(self._all_regions) > 1:
            return None
        # Without a null, which has a region of its own.
        is_total = all(isinstance(f.transform, Bucket | Unsharded) for f in self._spec.fields)
        return self._all_regions[0] if is_total else None

    def known_region(self, region_id: UUID) -> RegionAssignment | None:
        """Return the region with an id, among the regions that do not depend on the data."""
        if self._known is None:
            nulls = [pa.nulls(1, value_type) for value_type in self._value_types]
            known = [*(self._all_regions or ()), *([] if self._single else self._regions(nulls))]
            self._known = {region.region_id: region for region in known}
        return self._known.get(region_id)

    def region_of(self, values: RegionValues) -> UUID:
        """Return the id of the region with some region values.

        Raises CorruptDataError if the values do not have the types of the spec.
        """
        if self._single is not None:
            return self._single.region_id
        stored = dict(values)
        arrays = [
            decode_values([stored.get(field.field_id)], value_type)
            for field, value_type in zip(self._spec.fields, self._value_types, strict=True)
        ]
        return self._regions(arrays)[0].region_id

    def assignments(self) -> list[RegionAssignment] | None:
        """Return all regions, in the order of bucket numbers; None if they depend on the data.

        For ``multi_bucket``, rows with nulls in all columns have one more region.
        """
        return None if self._all_regions is None else list(self._all_regions)

    def route(
        self, data: pa.RecordBatch | pa.Table, *, by: pa.RecordBatch | None = None
    ) -> list[tuple[RegionAssignment, pa.RecordBatch]]:
        """Split rows by region.

        The region columns have exactly the types of the table: the same number in another width
        hashes to another bucket. They are in ``by`` if ``data`` does not have them: deleted rows
        have nulls in all columns outside the key.

        Returns one part per region that occurs, in the order of bucket numbers or of first
        occurrence. Rows keep their order within a part. If all rows belong to one region, the batch
        itself is returned; otherwise the parts are slices of one copy, which lives as long as any
        of them.

        Raises InvalidInputError if a region column is absent or has another type; a delete lacks a
        region column outside of the key; or a table is too large for one batch.
        """
        if data.num_rows == 0:
            self._check_rows(data.schema)
            return []
        batch = data if isinstance(data, pa.RecordBatch) else _to_batch(data)
        if self._single is not None:
            return [(self._single, batch)]
        self._check_rows(batch.schema if by is None else by.schema)
        if by is None:
            self._check_deletes(batch)
        codes, regions = self._classify(batch if by is None else by)
        if len(codes) == 1:
            return [(regions[0], batch)]
        first = int(codes[0])
        sizes = np.bincount(codes, minlength=len(regions))
        if sizes[first] == len(codes):
            return [(regions[first], batch)]
        sorted_rows = batch.take(pa.array(np.argsort(codes, kind="stable")))
        ends = np.cumsum(sizes)
        return [
            (regions[code], sorted_rows.slice(int(ends[code] - sizes[code]), int(sizes[code])))
            for code in np.flatnonzero(sizes).tolist()
        ]

    def _check_rows(self, schema: pa.Schema) -> None:
        for name, data_type in self._sources:
            position = schema.get_field_index(name)
            if position < 0:
                raise InvalidInputError(
                    f"the rows have no region column {name!r}, or have it twice; "
                    f"their columns are {', '.join(schema.names)}"
                )
            row_type = schema.field(position).type
            if row_type != data_type:
                raise InvalidInputError(
                    f"region column {name!r} has type {row_type} in the rows but "
                    f"{data_type} in the table; cast the rows to the schema of the table"
                )

    def _check_deletes(self, batch: pa.RecordBatch) -> None:
        """Refuse deleted rows without their region columns: they could be routed to any region."""
        beside = self._spec.columns_beside_key
        if not beside or batch.schema.get_field_index(TOMBSTONE) < 0:
            return
        deleted = batch.column(TOMBSTONE)
        # Key columns among them have values.
        if any(batch.column(name).filter(deleted).null_count for name in beside):
            raise InvalidInputError(
                f"the table is divided by {', '.join(beside)}, which the primary key does not "
                "have to hold: give these columns with the keys to delete"
            )

    def _enumerate_regions(self) -> list[RegionAssignment] | None:
        if self._single is not None:
            return [self._single]
        if not self._spec.num_regions:
            return None
        counts = [field.transform.num_values or 0 for field in self._spec.fields]
        grid = np.indices(counts, dtype=np.int32).reshape(len(counts), -1)
        return self._regions([pa.array(numbers) for numbers in grid])

    def _classify(
        self, rows: pa.RecordBatch
    ) -> tuple[NDArray[np.integer], Sequence[RegionAssignment]]:
        """Return an index per row, and the list of regions that it refers to."""
        values = [_region_values(field, rows) for field in self._spec.fields]
        if rows.num_rows == 1:
            return np.zeros(1, dtype=np.int64), self._regions(values)
        if self._all_regions is not None and not any(value.null_count for value in values):
            codes = values[0].to_numpy()
            for field, value in zip(self._spec.fields[1:], values[1:], strict=True):
                codes = codes * (field.transform.num_values or 0) + value.to_numpy()
            return codes.astype(np.uint16), self._all_regions
        codes = _codes(values)
        # The first row of each code. Rows are assigned in reverse, and the last assignment stays.
        first = np.empty(int(codes.max()) + 1, dtype=np.int64)
        first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
        regions = self._regions([value.take(pa.array(first)) for value in values])
        return codes.astype(np.uint16) if len(regions) <= _RADIX else codes, regions

    def _regions(self, values: Sequence[pa.Array]) -> list[RegionAssignment]:
        """Return the region of each row of values, given one array per field."""
        stored = [encode_values(value) for value in values]
        is_named_by_lance = self._has_lance_ids and not values[0].null_count
        names = [] if is_named_by_lance else [encode_for_id(value) for value in values]
        regions = []
        for number, combination in enumerate(zip(*stored, strict=True)):
            # The encoded values suffice as a key: each column has one type, and null is None.
            region = self._cache.get(combination)
            if region is None:
                if len(self._cache) >= _CACHED_REGIONS:
                    self._cache.clear()
                field_values = tuple(
                    (field.field_id, value)
                    for field, value in zip(self._spec.fields, combination, strict=True)
                    if value is not None
                )
                region_id = self._adopted.get(frozenset(field_values)) or (
                    self._lance_region_id(combination[0])
                    if self._has_lance_ids and combination[0] is not None
                    else derived_region_id(self._spec.spec_id, (name[number] for name in names))
                )
                region = RegionAssignment(region_id, field_values)
                self._cache[combination] = region
            regions.append(region)
        return regions

    def _lance_region_id(self, value: bytes) -> UUID:
        if isinstance(self._spec.fields[0].transform, Bucket):
            return bucket_region_id(int.from_bytes(value, "little"))
        return identity_region_id(value)


def bucket_region_id(bucket: int) -> UUID:
    """Return the id of the region that holds one bucket, for any number of buckets.

    Raises InvalidInputError if the bucket is negative.
    """
    if bucket < 0:
        raise InvalidInputError(
            f"bucket numbers start at 0, got {bucket}; pass the bucket of a row"
        )
    return _derive(b"bucket-%d" % bucket)


def identity_region_id(value: bytes) -> UUID:
    """Return the id of the region that holds one value of an identity column.

    Integers are little-endian in the width of the column, booleans one byte, text UTF-8. Empty text
    has its own region.
    """
    return _derive(b"identity-" + value)


def derived_region_id(spec_id: int, value_names: Iterable[bytes]) -> UUID:
    """Return the id of a region of a spec that LanceDB does not support.

    ``value_names`` are the region values, in the order of the spec's fields, encoded by
    :func:`memwal.region.values.encode_for_id`.
    """
    return _derive(spec_id.to_bytes(4, "little") + b"".join(value_names), _OWN_NAMESPACE)


def _derive(name: bytes, namespace: UUID = _NAMESPACE) -> UUID:
    """Return the version-5 UUID of a name in bytes (RFC 9562, section 5.5).

    ``uuid.uuid5`` accepts bytes only since Python 3.12.
    """
    digest = sha1(namespace.bytes + name, usedforsecurity=False).digest()
    return UUID(bytes=digest[:16], version=5)


def _region_values(field: RegionField, rows: pa.RecordBatch) -> pa.Array:
    return field.transform.apply(
        [
            pa.nulls(rows.num_rows) if column is None else rows.column(column)
            for column in field.columns
        ]
    )


def _codes(values: Sequence[pa.Array]) -> NDArray[np.int64]:
    """Number the combinations of values by first occurrence."""
    codes, _ = _encoded(values[0])
    for value in values[1:]:
        others, count = _encoded(value)
        codes, _ = _encoded(pa.array(codes * count + others))
    return codes


def _encoded(values: pa.Array) -> tuple[NDArray[np.int64], int]:
    """Number the values by first occurrence, and count the distinct ones."""
    if pt.is_null(values.type):
        return np.zeros(len(values), dtype=np.int64), 1
    encoded = values.dictionary_encode("encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


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
