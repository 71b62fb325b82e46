"""Tasks of a verification, and reads that distinguish damaged data from a store that fails."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING
from uuid import UUID

from memwal.base_table.snapshot import first_line, is_panic
from memwal.errors import MemWalError, ObjectNotFoundError, StoreAccessError
from memwal.format.lance_manifest import read_index_section
from memwal.format.paths import MEM_WAL_INDEX_NAME
from memwal.region.manifest_store import discover_regions
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore

if TYPE_CHECKING:
    import lance


class Depth(Enum):
    """How much a verification reads."""

    QUICK = "quick"
    """Names, manifests and schemas; no rows."""

    FULL = "full"
    """All rows of the log and of generations, and the keys of the base table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyTask:
    """Part of a verification that one worker runs."""

    location: TableLocation
    regions: tuple[UUID, ...]  # Regions to check; empty for the base table itself
    # Whether the caller restricted no regions, so that the base table's records of regions can be
    # compared with all regions.
    all_regions: bool
    depth: Depth
    sample: int | None  # Number of generations of each region whose rows are read; None for all
    now: datetime  # When the verification began, in UTC


def plan_verify(
    location: TableLocation,
    *,
    regions: Collection[UUID] | None,
    depth: Depth,
    sample: int | None,
    max_tasks: int,
    now: datetime,
) -> tuple[VerifyTask, ...]:
    """Plan one task for the base table, and at most ``max_tasks`` for the regions."""
    region_ids = discover_regions(location.store) if regions is None else sorted(set(regions))
    count = min(max_tasks, len(region_ids))
    shares = [(), *(tuple(region_ids[start::count]) for start in range(count))]
    return tuple(
        VerifyTask(
            location=location,
            regions=share,
            all_regions=regions is None,
            depth=depth,
            sample=sample,
            now=now,
        )
        for share in shares
    )


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
    """Find the files of a data set that are missing or have a wrong size.

    Costs three listings, whatever the number of files.

    Parameters
    ----------
    location : TableLocation
    folder : str
        Folder of the data set, below the table; empty for the table itself.
    dataset : lance.LanceDataset
    manifest : bytes
        The data set's manifest file.

    Yields
    ------
    (str, str or None)
        Key of the file, and what is wrong with it; None if it is missing.
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
