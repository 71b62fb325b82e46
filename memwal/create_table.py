"""Create a table with MemWAL, or enable MemWAL on an existing Lance table."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import lance
import pyarrow as pa

from memwal.base_table.blobs import is_blob
from memwal.base_table.commit import (
    commit_durably,
    create_durably,
    is_same_spec,
    update_details,
)
from memwal.base_table.commit_records import read_details
from memwal.base_table.region_marks import read_marks
from memwal.base_table.snapshot import (
    BaseTable,
    open_base,
    read_table_manifest,
    stored_versions,
)
from memwal.boundary.lance_errors import first_line
from memwal.boundary.public import public
from memwal.errors import (
    ArgumentTypeError,
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    TableSetupError,
)
from memwal.expressions.predicate import quoted
from memwal.format.keys import check_key_type
from memwal.format.lance_manifest import find_mem_wal_index
from memwal.format.memwal_index import StoredRegionSpec
from memwal.format.paths import TOMBSTONE
from memwal.format.region_manifest import RegionManifest
from memwal.format.values import ArrowStream, check_storable, plain_dictionaries
from memwal.inputs.addresses import TableAddress, location_of
from memwal.lsm.indexes.catchup import check_maintainable
from memwal.lsm.indexes.kinds import BTREE
from memwal.region.manifest_store import read_manifests
from memwal.region.router import Router
from memwal.region.spec import RegionSpec
from memwal.region.spec_text import AS_BEFORE, UNSHARDED, as_region_spec
from memwal.region.transforms import NUM_BUCKETS
from memwal.storage.location import TableLocation
from memwal.storage.open import check_put_if_absent, check_reachable
from memwal.table import Table
from memwal.util.retry import retry_lost_races

logger = logging.getLogger(__name__)

_KEY = b"lance-schema:unenforced-primary-key"
_KEY_POSITION = b"lance-schema:unenforced-primary-key:position"
_INDEX_SUFFIX = "_idx"
_MAX_SHOWN = 5
_NAME_BASED = 5  # version of the ids that are derived from region values
_RESERVED = frozenset(
    {TOMBSTONE, "_rowid", "_rowaddr", "_rowoffset", "_gen", "_memtable_gen", "_distance", "_score"}
)


class ArrowModel(Protocol):
    """Model class that has an Arrow schema, such as LanceDB's ``LanceModel``."""

    def to_arrow_schema(self) -> pa.Schema: ...


SchemaSource: TypeAlias = pa.Schema | ArrowStream | ArrowModel


@public
def create(
    uri: str | os.PathLike[str],
    schema: SchemaSource,
    *,
    primary_key: str | Sequence[str] | None,
    region_spec: RegionSpec | str | None = UNSHARDED,
    maintained_indexes: Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    data_storage_version: str | None = None,
    stable_row_ids: bool = False,
) -> Table:
    """Create an empty Lance table with MemWAL enabled.

    Parameters
    ----------
    uri : str
        A local path, or ``s3://``, ``gs://``, ``az://``.
    schema : pyarrow.Schema, or an object that has one
        Also a table or data frame, whose rows are not written, or a model of LanceDB
        (``LanceModel``). Columns of dictionaries with indices of 8 or 16 bits, such as most
        categorical columns of pandas, become columns of their values.
    primary_key : str, sequence of str, or None
        Key columns, in key order: integers, bool, text or binary. None: rows have no key, are added
        by :meth:`memwal.Writer.append`, and never replace each other.
    region_spec : RegionSpec, str or None, default "unsharded"
        Rule that maps rows to regions, also as a text of the command line's form, such as
        ``bucket:id:4``. By default all rows are in one region; :func:`memwal.add_region_spec`
        divides them later. None: each writer names its region, and must not write a key that
        another region has.
    maintained_indexes : sequence of str
        BTREE indexes to create and maintain, named after their column: ``<column>_idx``. For other
        kinds, build the index on the Lance table and call :func:`enable`.
    storage_options : mapping of str to str, optional
        Lance's storage options. Kept in memory only.
    data_storage_version : str, optional
        Lance file version; by default Lance's own.
    stable_row_ids : bool, default False
        Whether a row keeps its id when it is updated or compacted, and Lance records for each row
        the version that inserted it and the one that updated it last. Cannot be changed later. A
        merge of many rows takes one stage more, and an index is built as one segment; lookups, text
        searches and index builds take two to five times the processor time. After rows
        that Lance's ``merge_insert`` inserted, compactions of Lance and LanceDB fail until the next
        merge or compaction by memwal.

    Raises
    ------
    InvalidInputError
        The key, the spec or an index does not fit the schema. Nothing was written.
    TableSetupError
        The table exists.
    UnsupportedStoreError
        The store has no put-if-absent.
    """
    location = TableLocation(os.fspath(uri), storage_options or {})
    given = _schema_of(schema)
    schema = plain_dictionaries(given)
    region_spec = None if region_spec is None else as_region_spec(region_spec)
    key = () if primary_key is None else _key_columns(primary_key)
    marked = _with_primary_key(schema, key)
    _check_spec(region_spec, key, schema)
    columns = {name: _index_column(name, schema) for name in maintained_indexes}
    _rehearse(marked, columns, data_storage_version)
    check_reachable(location.store)
    check_put_if_absent(location.store)
    create_durably(
        location,
        marked.empty_table(),
        data_storage_version=data_storage_version,
        enable_stable_row_ids=stable_row_ids,
    )
    for name, column in columns.items():
        _create_index(open_base(location), name, column)
    changed = [field.name for field in schema if field != given.field(field.name)]
    if changed:
        logger.info(
            "%s: %s: plain values are stored; the indices of the dictionaries are too narrow",
            location,
            ", ".join(changed),
        )
    base = open_base(location)
    specs = () if region_spec is None else (region_spec.bind(base.field_ids(), base.schema),)
    return _initialize(base, specs, maintained_indexes)


@public
def enable(
    uri: TableAddress,
    *,
    region_spec: RegionSpec | str | None = AS_BEFORE,
    maintained_indexes: Sequence[str] | None = (),
    primary_key: str | Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    allow_external: Sequence[str] = (),
) -> Table:
    """Enable MemWAL on a Lance table. Parameters that are not listed are those of :func:`create`.

    Parameters
    ----------
    uri, storage_options, allow_external
        As for :func:`memwal.open`.
    region_spec : RegionSpec, str or None, default "as before"
        As for :func:`create`. By default the spec that the table's regions were made for, if
        MemWAL was enabled before and was taken away; ``unsharded`` for a table without regions.
    maintained_indexes : sequence of str or None
        Indexes of the table that are also built on generations, and have to cover a merged one
        before it is collected: BTREE, text and vector indexes. None: all indexes, including those
        created later. Index builds extend the other indexes of the table as well.
    primary_key : str or sequence of str, optional
        Key columns, for a table whose schema has no primary key yet. Columns that may hold nulls
        are made non-nullable. All keys are read once, in bounded memory, as
        :meth:`memwal.Table.verify` does; several rows of one key are refused. ``()`` enables MemWAL
        without a key: see :func:`create`. LanceDB 0.40 refuses to query such a table.

    Raises
    ------
    TableSetupError
        The table does not exist, has no primary key and none is given, has MemWAL enabled already,
        or has regions whose spec no stored version has: give it.
    InvalidInputError
        The key, the spec or an index does not fit the table or its regions, or rows have a null in
        a key column, or the same key. Nothing was written.
    ConflictError
        Other commits kept getting in between.
    UnsupportedStoreError
        The store has no put-if-absent.
    """
    location = location_of(uri, storage_options, allow_external=allow_external)
    check_reachable(location.store)
    base = open_base(location)
    if base.index is not None:
        raise TableSetupError(f"MemWAL is enabled on {location} already; open it as it is")
    key = _key_columns(primary_key) if primary_key is not None else base.primary_key
    if not key and primary_key is None:
        raise TableSetupError(
            f"{location} has no primary key; name its columns: primary_key=[...] or --primary-key; "
            "or, for rows that are only added, primary_key=() or --no-primary-key"
        )
    if base.primary_key and key != base.primary_key:
        raise InvalidInputError(
            f"the primary key of {location} is {', '.join(base.primary_key)} and cannot be changed"
        )
    marked = _with_primary_key(base.stored.schema, key)
    check_storable(base.dataset.schema, base.dataset.data_storage_version)
    specs = _specs_for(base, region_spec, key)
    existing = {index.name for index in base.dataset.describe_indices()}
    unknown = [name for name in maintained_indexes or () if name not in existing]
    if unknown:
        raise InvalidInputError(
            f"{location} has no index {', '.join(unknown)}; "
            f"it has {', '.join(sorted(existing)) or 'none'}"
        )
    check_maintainable(base, maintained_indexes or ())
    check_put_if_absent(location.store)
    if not base.primary_key:
        _nullable(base, key)
        _check_distinct(base, key)
    # A process that dies between these commits leaves a table that the next call goes on with.
    base = _without_nulls(base, key)
    if key and not base.primary_key:
        marks = {
            name: {k.decode(): v.decode() for k, v in marked.field(name).metadata.items()}
            for name in key
        }
        commit_durably(base, lambda dataset: dataset.update_field_metadata(marks))
        base = open_base(location)
    return _initialize(base, specs, maintained_indexes)


def _specs_for(
    base: BaseTable, given: RegionSpec | str | None, primary_key: Sequence[str]
) -> tuple[StoredRegionSpec, ...]:
    """Return the specs with which to enable MemWAL on a table; empty for manual regions.

    Regions that are left from before keep theirs, all with their ids: by another spec, a key would
    come into a second region, and nothing tells then which row is newer. Reads the manifests of the
    versions since the table had MemWAL, only if it has regions or region marks.
    """
    store = base.location.store
    spec = None
    if given is not None:
        spec = as_region_spec(UNSHARDED if given == AS_BEFORE else given)
    _check_spec(spec, primary_key, base.schema)
    bound: tuple[StoredRegionSpec, ...] = (
        () if spec is None else (spec.bind(base.field_ids(), base.schema),)
    )
    manifests = read_manifests(store)
    if not (manifests or read_marks(store)):
        return bound
    command = f"memwal enable {base.location.uri}"
    earlier = _earlier_specs(base)
    if given == AS_BEFORE:
        if earlier is None:
            raise TableSetupError(
                f"{base.location} has regions from before, and no stored version has the region "
                f"spec that they were made for; give that spec: {command} --regions SPEC"
            )
        return earlier
    newest = max(earlier or (), key=lambda stored: stored.spec_id, default=None)
    if newest is None:
        spec_id = max((1, *(region.spec_id for region in manifests.values())))
        bound = tuple(replace(stored, spec_id=spec_id) for stored in bound)
        fits = _may_fit(base, spec, manifests.values(), spec_id)
    else:
        fits = spec is not None and is_same_spec(newest, spec, base)
    if not fits:
        raise InvalidInputError(
            f"{base.location} has regions from before, which were made for another region spec "
            f"than {spec or 'manual regions'}. Give theirs"
            + (f", {command} --regions SPEC," if newest is None else f", or none: {command},")
            + f" and change it then: memwal add-region-spec {base.location.uri}"
        )
    return earlier or bound


def _earlier_specs(base: BaseTable) -> tuple[StoredRegionSpec, ...] | None:
    """Return the specs of the newest stored version with MemWAL; None if there is none."""
    for version in sorted(stored_versions(base.location), reverse=True):
        if find_mem_wal_index(read_table_manifest(base.location, version)) is not None:
            return read_details(base, version).region_specs
    return None


def _may_fit(
    base: BaseTable, spec: RegionSpec | None, regions: Collection[RegionManifest], spec_id: int
) -> bool:
    """Return whether a spec, or none, may be that of regions, as far as their manifests tell.

    Regions of an earlier spec than ``spec_id``, the newest one, have no rows that are not merged.
    """
    if spec is None:
        return all(region.spec_id == 0 for region in regions)
    router = Router(replace(spec, spec_id=spec_id), base.schema)
    for region in regions:
        # Ids that are not derived were chosen by another client.
        if region.spec_id not in (0, spec_id) or region.region_id.version != _NAME_BASED:
            continue
        if region.region_fields:
            try:
                derived = router.region_of(frozenset(region.region_fields))
            except CorruptDataError:
                # Values of other types.
                return False
            if derived != region.region_id:
                return False
        elif router.known_region(region.region_id) is None and router.assignments() is not None:
            return False
    return True


def _key_columns(primary_key: str | Sequence[str]) -> tuple[str, ...]:
    return (primary_key,) if isinstance(primary_key, str) else tuple(primary_key)


def _nullable(base: BaseTable, key: Sequence[str]) -> list[str]:
    """Return the nullable ones of some columns; InvalidInputError if a row has a null there."""
    nullable = [name for name in key if base.schema.field(name).nullable]
    for name in nullable:
        rows = base.dataset.to_table([], filter=f"{quoted(name)} IS NULL", with_row_id=True)
        if rows.num_rows:
            shown = ", ".join(map(str, rows.column("_rowid").slice(0, _MAX_SHOWN).to_pylist()))
            raise InvalidInputError(
                f"key column {name} of {base.location} is null in {rows.num_rows} rows, such as "
                f"those of row id {shown}: give them a key, or delete them, and enable MemWAL then"
            )
    return nullable


def _check_distinct(base: BaseTable, key: Sequence[str]) -> None:
    """Raise InvalidInputError if several rows have one key, which has no nulls.

    A row that another client appends after this is not seen: verify finds it.
    """
    from memwal.jobs.verify.base_table import check_repeated_keys

    for repeated in check_repeated_keys(replace(base, primary_key=tuple(key))):
        raise InvalidInputError(
            f"{', '.join(key)} is no key of {base.location}: {repeated.text}; name other "
            "columns, or delete the surplus rows, and enable MemWAL then"
        )


def _without_nulls(base: BaseTable, key: Sequence[str]) -> BaseTable:
    """Make key columns non-nullable. Lance refuses it if a row has a null, or one is appended."""

    def forbid() -> BaseTable:
        latest = open_base(base.location)
        nullable = _nullable(latest, key)
        if not nullable:
            return latest
        changes = [{"path": name, "nullable": False} for name in nullable]
        commit_durably(latest, lambda dataset: dataset.alter_columns(*changes))
        return open_base(base.location)

    exhausted = ConflictError(
        f"other commits to {base.location} kept getting in between; try again"
    )
    return retry_lost_races(forbid, exhausted=exhausted)


def _check_spec(
    region_spec: RegionSpec | None, primary_key: Sequence[str], schema: pa.Schema
) -> None:
    if region_spec is not None:
        region_spec.check_keys(primary_key)
        region_spec.value_types(schema)


def _rehearse(
    schema: pa.Schema, columns: Mapping[str, str], data_storage_version: str | None
) -> None:
    """Create the table in memory first, so that nothing is written if Lance refuses it."""
    reserved = [name for name in schema.names if name in _RESERVED]
    if reserved:
        raise InvalidInputError(f"the column name {reserved[0]} is reserved; choose another")
    try:
        plain = lance.write_dataset(
            pa.schema([("any", pa.bool_())]).empty_table(),
            "memory://",
            data_storage_version=data_storage_version,
        )
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"Lance has no file version {data_storage_version}: {first_line(error)}"
        ) from error
    check_storable(schema, plain.data_storage_version)
    try:
        dataset = lance.write_dataset(
            schema.empty_table(), "memory://", data_storage_version=data_storage_version
        )
        for name, column in columns.items():
            dataset.create_scalar_index(column, BTREE.pylance_name, name=name)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInputError(f"Lance does not accept this table: {first_line(error)}") from error


def _initialize(
    base: BaseTable,
    specs: tuple[StoredRegionSpec, ...],
    maintained_indexes: Sequence[str] | None,
) -> Table:
    indexes = None if maintained_indexes is None else list(maintained_indexes)
    options = _lance_options(specs[0], base) if len(specs) == 1 else {}
    commit_durably(
        base, lambda dataset: dataset.initialize_mem_wal(maintained_indexes=indexes, **options)
    )
    if specs and not options:
        # Until this commit the table has no spec, as for writers that name their regions, and no
        # regions, or those from before.
        update_details(base.location, lambda now: replace(now.details, region_specs=specs))
    return Table(base.location)


def _create_index(base: BaseTable, name: str, column: str) -> None:
    commit_durably(
        base,
        lambda dataset: dataset.create_scalar_index(column, BTREE.pylance_name, name=name),
        doing=f"creating {base.location}",
    )


def _lance_options(stored: StoredRegionSpec, base: BaseTable) -> dict[str, Any]:
    """Return the arguments with which Lance stores this spec; empty if it does not support it."""
    (field, *others) = stored.fields
    names = {field_id: name for name, field_id in base.field_ids().items()}
    if others or stored.spec_id != 1 or set(field.parameters) - {NUM_BUCKETS}:
        return {}
    match field.transform:
        case "bucket":
            return {
                "bucket_column": names[field.source_ids[0]],
                "num_buckets": int(field.parameters[NUM_BUCKETS]),
            }
        case "identity" if RegionSpec.from_stored(stored, names).is_shared_with_lance(base.schema):
            return {"identity_column": names[field.source_ids[0]]}
        case "unsharded":
            return {"unsharded": True}
    return {}


def _schema_of(source: Any) -> pa.Schema:
    """Return the schema that a table, a data frame or a model has."""
    if isinstance(source, pa.Schema):
        return source
    try:
        if hasattr(source, "to_arrow_schema"):
            return source.to_arrow_schema()
        if hasattr(source, "__arrow_c_schema__"):
            return pa.schema(source)
        if hasattr(source, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(source).schema
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"reading the schema of a {type(source).__name__} failed with {type(error).__name__}"
        ) from error
    raise ArgumentTypeError(
        f"schema is of type {type(source).__name__}; pass a pyarrow.Schema, such as "
        'pyarrow.schema({"id": pyarrow.int64()}), a table, or a LanceModel'
    )


def _with_primary_key(schema: pa.Schema, primary_key: Sequence[str]) -> pa.Schema:
    """Return the schema with key columns that are marked as in Lance, and not nullable."""
    if len(set(primary_key)) != len(primary_key):
        raise InvalidInputError(f"a key column is given twice: {', '.join(primary_key)}")
    repeated = [name for name in schema.names if schema.names.count(name) > 1]
    if repeated:
        raise InvalidInputError(f"the schema has several columns of the name {repeated[0]}")
    for position, name in enumerate(primary_key, start=1):
        index = schema.get_field_index(name)
        if index < 0:
            raise InvalidInputError(
                f"key column {name!r} does not exist; the schema has {', '.join(schema.names)}"
            )
        field = schema.field(index)
        check_key_type(field)
        if is_blob(field):
            raise InvalidInputError(f"key column {name} has blobs; leave that encoding out")
        if '"' in name:
            raise InvalidInputError(
                f"key column {name!r}: Lance cannot merge rows by a column with a double quote in "
                "its name; give it another name"
            )
        metadata = {**(field.metadata or {}), _KEY: b"true"}
        if len(primary_key) > 1:
            metadata[_KEY_POSITION] = str(position).encode()
        schema = schema.set(index, field.with_nullable(False).with_metadata(metadata))
    return schema


def _index_column(name: str, schema: pa.Schema) -> str:
    column = name.removesuffix(_INDEX_SUFFIX)
    if column == name or column not in schema.names:
        raise InvalidInputError(
            f"maintained index {name} does not name a column; a new table gets "
            f"{BTREE.pylance_name} indexes called <column>{_INDEX_SUFFIX}, others are built on the "
            "table before memwal.enable"
        )
    return column
