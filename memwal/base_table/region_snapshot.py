"""Snapshot of all regions' manifests in the MemWAL index (spec: Region Snapshot Storage).

The snapshot is a Lance file with a row per region: inside the details of the index while regions
are few, and beside the other indexes' files when they are many. The id of the index changes with
every commit, also with those of Lance, so it cannot lead to that file for long; the details then
hold a file without rows whose metadata names the file with the rows. A file that is gone, because
the version that it was written for has been cleaned up, is no snapshot: readers list the regions
then.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from memwal.base_table.snapshot import lance_errors
from memwal.errors import CorruptDataError, InvalidInputError, MemWalError, ObjectNotFoundError
from memwal.format.lance_manifest import check_lance_file
from memwal.format.memwal_index import IndexDetails, StoredRegionSpec
from memwal.format.paths import index_file_key
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.region.values import decode_values, encode_values, parse_type
from memwal.storage.object_store import ObjectStore

logger = logging.getLogger(__name__)

MAX_CLOCK_SKEW_SECONDS: Final = 60.0
"""By so many seconds the clocks of machines may differ that share a table, at most."""

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
    """One row per region, in the order of their ids.

    Parameters
    ----------
    manifests : iterable of RegionManifest
    specs : sequence of StoredRegionSpec
        They give region values their types; a value of a spec that is not among them stays bytes.

    Returns
    -------
    pyarrow.Table
        The columns of the spec; then ``shard_id`` and ``shard_spec_id``, as LanceDB calls them,
        with the id as text; then a column per region value.
    """
    found = sorted(manifests, key=lambda manifest: manifest.region_id)
    columns: dict[str, pa.Array] = {
        "region_id": pa.array([m.region_id.bytes for m in found], pa.binary(16)),
        "version": pa.array([m.version for m in found], pa.uint64()),
        "region_spec_id": pa.array([m.spec_id for m in found], pa.uint32()),
        "writer_epoch": pa.array([m.writer_epoch for m in found], pa.uint64()),
        "replay_after_wal_entry_position": pa.array([m.replay_after for m in found], pa.uint64()),
        "wal_entry_position_last_seen": pa.array([m.wal_last_seen for m in found], pa.uint64()),
        "current_generation": pa.array([m.current_generation for m in found], pa.uint64()),
        "flushed_generations": pa.array(
            [
                [{"generation": f.generation, "path": f.path} for f in manifest.flushed]
                for manifest in found
            ],
            _FLUSHED_TYPE,
        ),
        "shard_id": pa.array([str(m.region_id) for m in found], pa.string()),
        "shard_spec_id": pa.array([m.spec_id for m in found], pa.uint32()),
    }
    values = [dict(manifest.region_fields) for manifest in found]
    types = _value_types(specs)
    for field_id in sorted({name for fields in values for name in fields}):
        stored = [fields.get(field_id) for fields in values]
        columns[f"{_PREFIX}{field_id}"] = _typed(stored, types.get(field_id, pa.binary()))
    return pa.table(columns)


def encode_snapshot(rows: pa.Table) -> bytes:
    """The bytes of a Lance file with these rows."""
    from lance.file import LanceFileWriter

    # It only exists as a file until it is read back.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "snapshot.lance")
        with LanceFileWriter(str(path), rows.schema, version=_FILE_VERSION) as writer:
            for batch in rows.to_batches():
                writer.write_batch(batch)
        return path.read_bytes()


def snapshot_key(index_id: UUID) -> str:
    """Where the snapshot of a version of the index is stored that does not fit the details."""
    return index_file_key(index_id, _FILE_NAME)


def encode_pointer(key: str, schema: pa.Schema) -> bytes:
    """What the details hold instead: no row, and where the rows are."""
    return encode_snapshot(schema.with_metadata({_LOCATION: key.encode()}).empty_table())


def read_snapshot(store: ObjectStore, details: IndexDetails) -> dict[UUID, RegionManifest] | None:
    """The regions of the snapshot of a table; None when there is none, or its file is gone.

    What comes back is what a manifest says, without its status and the sizes of its generations: a
    snapshot does not have them.

    Raises
    ------
    CorruptDataError
        It cannot be read. All that it tells, the regions' manifests tell too.
    """
    data = details.inline_snapshots
    if not data:
        return None
    key = external_key(details)
    try:
        rows = _decode(data if key is None else store.get(key))
    except ObjectNotFoundError:
        return None
    except InvalidInputError as error:
        # What stands there is no file: a loop of links.
        raise _unreadable(error) from error
    try:
        found = _manifests(rows)
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(error) from error
    return {manifest.region_id: manifest for manifest in found}


def snapshot_age(details: IndexDetails, now: float) -> float | None:
    """How old the snapshot is; None if there is none, or nobody can tell.

    One that was taken in the future is of a clock that was wrong. It would stand, and count as new,
    until all clocks are there.

    Parameters
    ----------
    now : float
        Seconds since the epoch.

    Returns
    -------
    float or None
        Seconds, not below 0.
    """
    if not details.snapshot_ts_millis:
        return None
    age = now - details.snapshot_ts_millis / 1000
    return max(age, 0.0) if age >= -MAX_CLOCK_SKEW_SECONDS else None


def read_usable_snapshot(
    store: ObjectStore, details: IndexDetails
) -> dict[UUID, RegionManifest] | None:
    """As :func:`read_snapshot`, for who can do without: None for one that cannot be read."""
    try:
        return read_snapshot(store, details)
    except CorruptDataError as error:
        logger.warning("%s", error)
        return None


def external_key(details: IndexDetails) -> str | None:
    """Key of the file that the details lead to, None when they hold the rows or none exist.

    Raises
    ------
    CorruptDataError
        They cannot be read, or lead elsewhere.
    """
    if not details.inline_snapshots:
        return None
    named = (_decode(details.inline_snapshots).schema.metadata or {}).get(_LOCATION)
    if named is not None and _KEY.fullmatch(named) is None:
        raise _unreadable(f"it is said to be in {named!r}")
    return None if named is None else bytes(named).decode()


def _decode(data: bytes) -> pa.Table:
    from lance.file import LanceFileReader

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "snapshot.lance")
        path.write_bytes(data)
        try:
            check_lance_file(data, name="the region snapshot")
            with lance_errors("reading the region snapshot"):
                return LanceFileReader(str(path)).read_all().to_table()
        except MemWalError as error:
            # What was just written is there: whatever Lance calls it, it is damaged.
            raise _unreadable(error) from error


def _unreadable(reason: object) -> CorruptDataError:
    return CorruptDataError(
        f"the region snapshot of the table cannot be read: {reason}; nothing needs it, and "
        "memwal snapshot writes a new one"
    )


def _manifests(rows: pa.Table) -> list[RegionManifest]:
    names = [name for name in rows.column_names if name.startswith(_PREFIX)]
    values = {name: encode_values(rows.column(name).combine_chunks()) for name in names}
    plain = rows.drop_columns(names).to_pylist()
    return [
        _manifest(row, {name: values[name][number] for name in names})
        for number, row in enumerate(plain)
    ]


def _manifest(row: dict[str, Any], values: dict[str, bytes | None]) -> RegionManifest:
    return RegionManifest(
        region_id=UUID(bytes=row["region_id"]),
        version=row["version"],
        writer_epoch=row["writer_epoch"],
        current_generation=row["current_generation"],
        replay_after=row["replay_after_wal_entry_position"],
        wal_last_seen=row["wal_entry_position_last_seen"],
        flushed=tuple(
            FlushedGeneration(generation=f["generation"], path=f["path"])
            for f in row["flushed_generations"]
        ),
        spec_id=row["region_spec_id"],
        region_fields=tuple(
            (name.removeprefix(_PREFIX), value)
            for name, value in values.items()
            if value is not None
        ),
    )


def _value_types(specs: Sequence[StoredRegionSpec]) -> dict[str, pa.DataType]:
    """Type of each region value on which all specs agree."""
    found: dict[str, set[str]] = defaultdict(set)
    for spec in specs:
        for field in spec.fields:
            found[field.field_id].add(field.result_type)
    types = {}
    for field_id, names in found.items():
        if len(names) == 1:
            try:
                types[field_id] = parse_type(*names)
            except InvalidInputError:
                continue
    return types


def _typed(stored: list[bytes | None], data_type: pa.DataType) -> pa.Array:
    try:
        return decode_values(stored, data_type)
    except CorruptDataError:
        # The snapshot tells what is there; what is wrong with it is for others to tell.
        return pa.array(stored, pa.binary())
