"""Tasks of a verification, and reads that distinguish damaged data from a store that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

import lance

from memwal.boundary.lance_errors import first_line, is_panic
from memwal.errors import MemWalError, ObjectNotFoundError, StoreAccessError
from memwal.format.lance_manifest import read_index_section
from memwal.format.paths import MEM_WAL_INDEX_NAME
from memwal.jobs.job import run_in_process
from memwal.jobs.options import VerifyOptions
from memwal.region.manifest_store import discover_regions
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """Part of a verification that one worker runs."""

    location: TableLocation
    regions: tuple[UUID, ...]  # to check; empty for the base table itself
    options: VerifyOptions  # without the runner, which does not go to workers
    now: datetime  # when the verification began, in UTC

    @property
    def all_regions(self) -> bool:
        """Whether the base table's records of regions can be compared with all regions."""
        return self.options.regions is None


def plan_verify(
    location: TableLocation, options: VerifyOptions, *, now: datetime
) -> tuple[VerifyTask, ...]:
    """Plan one task for the base table, and at most ``max_tasks`` for the regions."""
    regions = options.regions
    region_ids = discover_regions(location.store) if regions is None else sorted(set(regions))
    count = min(options.max_tasks or 1, len(region_ids))
    shares = [(), *(tuple(region_ids[start::count]) for start in range(count))]
    sent = replace(options, run=run_in_process)
    return tuple(VerifyTask(location, share, sent, now) for share in shares)


class Unreadable(Exception):
    """Lance cannot read data because it is damaged."""


@contextmanager
def damage_as_unreadable(store: ObjectStore, folder: str | None) -> Iterator[None]:
    """Translate what Lance raises at damaged data to :class:`Unreadable`.

    Lance does not distinguish a damaged file from a store that fails, and at some bytes it panics
    instead of raising. Therefore all files of the folder are read again as bytes: if that fails,
    the store's own error is raised. Without a folder, the table's versions are listed instead.
    """
    try:
        yield
    except StoreAccessError:
        raise
    except BaseException as error:
        expected = isinstance(error, (MemWalError, OSError, ValueError, RuntimeError, KeyError))
        if not expected and not is_panic(error):
            raise
        for info in store.list("_versions" if folder is None else folder):
            try:
                if folder is not None:
                    store.get(info.key)
            except ObjectNotFoundError:
                continue
        raise Unreadable(first_line(error)) from error


def find_bad_files(
    location: TableLocation, folder: str, dataset: lance.LanceDataset, manifest: bytes
) -> Iterator[tuple[str, str | None]]:
    """Yield the key of each file of a data set that is missing or wrong, and what is wrong with it.

    The second value is None for a missing file. ``folder`` is that of the data set, below the
    table; empty for the table itself. Costs three listings, whatever the number of files.
    """
    prefix = f"{folder}/" if folder else ""
    store = location.store
    sizes = {
        info.key: info.size
        for part in ("data", "_deletions")
        for info in store.list(f"{prefix}{part}")
    }
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        for file in metadata.files:
            if file.base_id is not None:
                # A file of a shallow clone is in another table.
                continue
            key = f"{prefix}data/{file.path}"
            if key not in sizes:
                yield key, None
            elif file.file_size_bytes and sizes[key] != file.file_size_bytes:
                yield key, f"it has {sizes[key]} bytes instead of {file.file_size_bytes}"
            elif not sizes[key]:
                yield key, "it is empty"
        deletions = metadata.deletion_file
        if deletions is not None and deletions.base_id is None:
            key = f"{prefix}{deletions.path(metadata.id)}"
            if key not in sizes:
                yield key, None
            elif not sizes[key]:
                yield key, "it is empty"
    segments = {
        info.key.removeprefix(f"{prefix}_indices/").partition("/")[0]
        for info in store.list(f"{prefix}_indices")
    }
    for entry in read_index_section(manifest, name=f"{prefix}_versions"):
        if entry.name != MEM_WAL_INDEX_NAME and str(entry.uuid) not in segments:
            yield f"{prefix}_indices/{entry.uuid}", None
