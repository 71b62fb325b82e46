"""Reading the state of all regions that a table's MemWAL index carries."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from memwal.format.index_details import IndexDetails
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.reader.recent import Recent

_KEPT: Final = 8
_PREFIX: Final = "region_field_"

_read: Recent[dict[UUID, RegionManifest]] = Recent(_KEPT)


def read_snapshot(details: IndexDetails) -> dict[UUID, RegionManifest]:
    """The regions of the snapshot in a table's details; empty when none was published.

    What comes back is what a manifest says, without its status and the sizes of its generations: a
    snapshot does not have them (spec: Region Snapshot Storage).
    """
    data = details.inline_snapshots
    return _read.get(data, lambda: _manifests(data)) if data else {}


def _manifests(data: bytes) -> dict[UUID, RegionManifest]:
    from lance.file import LanceFileReader

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "snapshot.lance")
        path.write_bytes(data)
        rows = LanceFileReader(str(path)).read_all().to_table().to_pylist()
    found = (_manifest(row) for row in rows)
    return {manifest.region_id: manifest for manifest in found}


def _manifest(row: dict[str, Any]) -> RegionManifest:
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
            for name, value in row.items()
            if name.startswith(_PREFIX) and value is not None
        ),
    )
