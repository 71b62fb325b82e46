"""Snapshot of all regions' manifests in the MemWAL index (spec: Region Snapshot Storage).

The snapshot is a Lance file with one row per region. It is stored inline in the details of the
index if there are few regions, else as an external file beside the files of the other indexes. The
id of the index changes with every commit, including Lance's own, so the path cannot be derived from
it. Instead the details contain a *pointer*: a file without rows whose metadata names the external
file. If that file is missing, because the version that it was written for was cleaned up, there is
no snapshot, and readers list the regions.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

import pyarrow as pa
from lance.file import LanceFileReader, LanceFileWriter

from memwal.base_table.snapshot import lance_errors
from memwal.errors import CorruptDataError, InvalidInputError, MemWalError, ObjectNotFoundError
from memwal.format.lance_files import check_lance_file
from memwal.format.memwal_index import IndexDetails, StoredRegionSpec
from memwal.format.paths import index_file_key
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.region.values import decode_values, encode_values, parse_type
from memwal.storage.object_store import ObjectStore

logger = logging.getLogger(__name__)

MAX_CLOCK_SKEW_SECONDS: Final = 60.0
"""Maximum difference between the clocks of machines that share a table."""

_FLUSHED_TYPE: Final = pa.list_(
    pa.struct([pa.field("generation", pa.uint64()), pa.field("path", pa.string())])
)
_FILE_VERSION: Final = "2.0"
_FILE_NAME: Final = "index.lance"
_PREFIX: Final = "region_field_"
_LOCATION: Final = b"memwal.snapshot"
_KEY: Final = re.compile(rb"_indices/[0-9a-f-]{36}/index\.lance")


def snapshot_rows(
    manifests: Iterable[RegionManifest], specs: Sequence[StoredRegionSpec]
) -> pa.Table:
    """Return one row per region, sorted by region id.

    The columns are those of the spec; then ``shard_id`` and ``shard_spec_id``, LanceDB's names,
    with the id as text; then one per region value. ``specs`` define the types of region values;
    values of other specs stay bytes.
    """
    regions = sorted(manifests, key=lambda manifest: manifest.region_id)
    columns: dict[str, pa.Array] = {
        "region_id": pa.array([m.region_id.bytes for m in regions], pa.binary(16)),
        "version": pa.array([m.version for m in regions], pa.uint64()),
        "region_spec_id": pa.array([m.spec_id for m in regions], pa.uint32()),
        "writer_epoch": pa.array([m.writer_epoch for m in regions], pa.uint64()),
        "replay_after_wal_entry_position": pa.array([m.replay_after for m in regions], pa.uint64()),
        "wal_entry_position_last_seen": pa.array([m.wal_last_seen for m in regions], pa.uint64()),
        "current_generation": pa.array([m.current_generation for m in regions], pa.uint64()),
        "flushed_generations": pa.array(
            [
                [{"generation": f.generation, "path": f.path} for f in manifest.flushed]
                for manifest in regions
            ],
            _FLUSHED_TYPE,
        ),
        "shard_id": pa.array([str(m.region_id) for m in regions], pa.string()),
        "shard_spec_id": pa.array([m.spec_id for m in regions], pa.uint32()),
    }
    values = [dict(manifest.region_fields) for manifest in regions]
    types = _value_types(specs)
    for field_id in sorted({name for fields in values for name in fields}):
        stored = [fields.get(field_id) for fields in values]
        columns[f"{_PREFIX}{field_id}"] = _value_column(stored, types.get(field_id, pa.binary()))
    return pa.table(columns)


def encode_snapshot(rows: pa.Table) -> bytes:
    """Encode rows as a Lance file."""
    # Lance's writer needs a file.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "snapshot.lance")
        with LanceFileWriter(str(path), rows.schema, version=_FILE_VERSION) as writer:
            for batch in rows.to_batches():
                writer.write_batch(batch)
        return path.read_bytes()


def snapshot_key(index_id: UUID) -> str:
    """Return the key of the external snapshot file of an index."""
    return index_file_key(index_id, _FILE_NAME)


def encode_pointer(key: str, schema: pa.Schema) -> bytes:
    """Encode a pointer to the external file at ``key``, for the details."""
    return encode_snapshot(schema.with_metadata({_LOCATION: key.encode()}).empty_table())


def read_snapshot(store: ObjectStore, details: IndexDetails) -> dict[UUID, RegionManifest] | None:
    """Read the manifests in a table's snapshot; None if there is none or its file is missing.

    The manifests lack their status and the sizes of their generations, which a snapshot does not
    store. Raises CorruptDataError if the snapshot cannot be read; the manifests of the regions have
    all of its content.
    """
    data = details.inline_snapshots
    if not data:
        return None
    rows = _decode(data)
    key = _external_key(rows)
    try:
        if key is not None:
            rows = _decode(store.get(key))
    except ObjectNotFoundError:
        return None
    except InvalidInputError as error:
        # The pointer has a key that no file can have.
        raise _unreadable(error) from error
    try:
        manifests = _decode_manifests(rows)
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(error) from error
    return {manifest.region_id: manifest for manifest in manifests}


def snapshot_age(details: IndexDetails, now: float) -> float | None:
    """Return the age of the snapshot in seconds; None without one, or if its time is in the future.

    A time in the future comes from a wrong clock. Such a snapshot would count as new until all
    clocks reach that time. ``now`` is in seconds since the epoch.
    """
    if not details.snapshot_ts_millis:
        return None
    age = now - details.snapshot_ts_millis / 1000
    return max(age, 0.0) if age >= -MAX_CLOCK_SKEW_SECONDS else None


def read_usable_snapshot(
    store: ObjectStore, details: IndexDetails
) -> dict[UUID, RegionManifest] | None:
    """Read the snapshot as :func:`read_snapshot` does, but return None if it cannot be read."""
    try:
        return read_snapshot(store, details)
    except CorruptDataError as error:
        logger.warning("%s", error)
        return None


def external_key(details: IndexDetails) -> str | None:
    """Return the key of the external snapshot file; None if the snapshot is inline or absent.

    Raises CorruptDataError if the pointer cannot be read, or has an invalid key.
    """
    if not details.inline_snapshots:
        return None
    return _external_key(_decode(details.inline_snapshots))


def _external_key(rows: pa.Table) -> str | None:
    """Return the key that a pointer has; None for the rows of a snapshot."""
    key = (rows.schema.metadata or {}).get(_LOCATION)
    if key is not None and _KEY.fullmatch(key) is None:
        raise _unreadable(f"it is said to be in {key!r}")
    return None if key is None else bytes(key).decode()


def _decode(data: bytes) -> pa.Table:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "snapshot.lance")
        path.write_bytes(data)
        try:
            check_lance_file(data, name="the region snapshot")
            with lance_errors("reading the region snapshot"):
                return LanceFileReader(str(path)).read_all().to_table()
        except MemWalError as error:
            # The file was just written, so any error of Lance means that the content is damaged.
            raise _unreadable(error) from error


def _unreadable(reason: object) -> CorruptDataError:
    return CorruptDataError(
        f"the region snapshot of the table cannot be read: {reason}; nothing needs it, and "
        "memwal snapshot writes a new one"
    )


def _decode_manifests(rows: pa.Table) -> list[RegionManifest]:
    names = [name for name in rows.column_names if name.startswith(_PREFIX)]
    values = {name: encode_values(rows.column(name).combine_chunks()) for name in names}
    return [
        RegionManifest(
            region_id=region_id,
            version=row["version"],
            writer_epoch=row["writer_epoch"],
            current_generation=row["current_generation"],
            replay_after=row["replay_after_wal_entry_position"],
            wal_last_seen=row["wal_entry_position_last_seen"],
            flushed=tuple(
                FlushedGeneration(region_id=region_id, generation=f["generation"], path=f["path"])
                for f in row["flushed_generations"]
            ),
            spec_id=row["region_spec_id"],
            region_fields=tuple(
                (name.removeprefix(_PREFIX), value)
                for name in names
                if (value := values[name][number]) is not None
            ),
        )
        for number, row in enumerate(rows.drop_columns(names).to_pylist())
        for region_id in [UUID(bytes=row["region_id"])]
    ]


def _value_types(specs: Sequence[StoredRegionSpec]) -> dict[str, pa.DataType]:
    """Return the type of each region value for which all specs have the same."""
    type_names: dict[str, set[str]] = defaultdict(set)
    for spec in specs:
        for field in spec.fields:
            type_names[field.field_id].add(field.result_type)
    types = {}
    for field_id, names in type_names.items():
        if len(names) == 1:
            try:
                types[field_id] = parse_type(*names)
            except InvalidInputError:
                continue
    return types


def _value_column(stored: list[bytes | None], data_type: pa.DataType) -> pa.Array:
    try:
        return decode_values(stored, data_type)
    except CorruptDataError:
        # The snapshot stores the bytes as they are; memwal verify reports invalid values.
        return pa.array(stored, pa.binary())
