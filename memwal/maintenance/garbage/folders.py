"""Folders of generations, as they are stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from memwal.format.names import BLOOM_FILTER_NAME, generation_dir, parse_generation_name
from memwal.maintenance.garbage.decisions import Decision, Kind, Reason
from memwal.storage.base import ObjectStore


@dataclass(frozen=True, slots=True)
class Extent:
    """How much there is below a prefix, and when the youngest of it was written."""

    objects: int
    bytes: int
    youngest: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """One folder.

    Attributes
    ----------
    name : str
    generation : int
        Number in the name.
    objects, bytes : int
    youngest : datetime or None
        When the youngest object was written; None when there is none.
    """

    name: str
    generation: int
    objects: int
    bytes: int
    youngest: datetime | None

    def decision(
        self,
        kind: Kind,
        region_id: str,
        *,
        reason: Reason,
        words: str,
        goes: bool = False,
        until: str | None = None,
    ) -> Decision:
        """A decision about this folder."""
        return Decision(
            kind=kind,
            what=self.name,
            region_id=region_id,
            objects=self.objects,
            bytes=self.bytes,
            goes=goes,
            reason=reason,
            words=words,
            until=until,
        )


def of_generations(names: Iterable[str]) -> list[str]:
    """Those of a region's folders that hold generations."""
    return [name for name in names if parse_generation_name(name) is not None]


def measure(store: ObjectStore, region_id: UUID, name: str) -> Folder:
    """List a folder."""
    generation = parse_generation_name(name)
    extent = measure_prefix(store, generation_dir(region_id, name))
    return Folder(
        name=name,
        generation=-1 if generation is None else generation,
        objects=extent.objects,
        bytes=extent.bytes,
        youngest=extent.youngest,
    )


def measure_prefix(store: ObjectStore, prefix: str) -> Extent:
    """List what is below a prefix, and keep only its sums."""
    objects, size = 0, 0
    youngest: datetime | None = None
    for info in store.list(prefix):
        objects += 1
        size += info.size
        youngest = info.modified if youngest is None else max(youngest, info.modified)
    return Extent(objects, size, youngest)


def delete(store: ObjectStore, region_id: UUID, name: str) -> None:
    """Delete a folder that nobody will name; half of it never passes for a generation.

    What a flush writes last goes first.
    """
    folder = generation_dir(region_id, name)
    store.delete(f"{folder}/{BLOOM_FILTER_NAME}")
    store.delete_folder(folder)
