"""Bytes that stay stored for the version of a token."""

from __future__ import annotations

from collections.abc import Iterable

from memwal.base_table.snapshot import BaseTable, read_table_manifest
from memwal.errors import TableSetupError
from memwal.format.lance_manifest import find_mem_wal_index, named_files
from memwal.format.memwal_index import IndexDetails
from memwal.format.region_manifest import RegionManifest


def held_bytes(newest: BaseTable, version: int, manifests: Iterable[RegionManifest]) -> int:
    """Return the bytes that a collection and a clean-up could free without a tag on a version.

    Files of the version that the newest one does not have, as far as manifests state their sizes,
    and merged generations that the version lacks, in memory. Costs a request.
    """
    if version == newest.version:
        return 0
    try:
        manifest = read_table_manifest(newest.location, version)
    except TableSetupError:
        return 0
    present = {file.key for file in named_files(newest.manifest)}
    files = {file.key: file.size or 0 for file in named_files(manifest)}
    entry = find_mem_wal_index(manifest)
    merged = {} if entry is None else IndexDetails.decode(entry.details).merged
    generations = sum(
        flushed.memory_bytes or 0
        for region in manifests
        for flushed in region.flushed
        if merged.get(region.region_id, 0)
        < flushed.generation
        <= newest.details.merged.get(region.region_id, 0)
    )
    return generations + sum(size for key, size in files.items() if key not in present)
