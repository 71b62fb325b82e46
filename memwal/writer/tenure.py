"""What a writer may do to its region's manifest for as long as nobody else claims the region."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from memwal.errors import RegionFencedError, StoreUnavailableError
from memwal.format.names import BLOOM_FILTER_NAME, generation_dir, table_manifest_keys
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.base import ObjectStore


class Nameable(Protocol):
    """What becomes a generation: its number, and the last position of the log that it covers."""

    @property
    def generation(self) -> int: ...

    @property
    def last_position(self) -> int: ...


class Tenure:
    """A claimed region: looks whether it is still ours, and names generations in the manifest.

    Safe to use from several threads.

    Parameters
    ----------
    claimed : RegionManifest
        As the claim wrote it.
    """

    def __init__(self, store: ObjectStore, claimed: RegionManifest) -> None:
        self.epoch = claimed.writer_epoch
        self._store = store
        self._region_id = claimed.region_id
        self._manifests = RegionManifestStore(store, claimed.region_id)
        self._lock = threading.Lock()
        self._known = claimed

    def verify(self) -> None:
        """Make sure that the region was ours when this was called.

        Raises
        ------
        RegionFencedError
            Another writer claimed it.
        """
        with self._lock:
            known = self._known
        if self._manifests.is_latest(known):
            return
        latest = self._manifests.read_latest()
        if latest is None:
            raise RegionFencedError(f"the manifest of region {self._region_id} is gone")
        self._check(latest)
        self._learn(latest)

    def name_generation(self, table: Nameable, write: Callable[[], FlushedGeneration]) -> None:
        """Write a MemTable as a generation and name it in the manifest.

        Parameters
        ----------
        write : callable
            Writes the rows into a new folder, complete and durable. Called again when the folder
            is gone before or after the manifest named it: this process then slept for so long
            that it was taken for the rest of a flush that died.

        Raises
        ------
        RegionFencedError
            Another writer claimed the region; it replays the rows.
        """
        lost: FlushedGeneration | None = None
        while True:
            flushed = write()
            change = partial(self._with, table=table, flushed=flushed, lost=lost)
            self._learn(self._manifests.update(change))
            if self._is_stored(flushed):
                return
            lost = flushed

    def _with(
        self,
        latest: RegionManifest,
        *,
        table: Nameable,
        flushed: FlushedGeneration,
        lost: FlushedGeneration | None,
    ) -> RegionManifest | None:
        """The manifest with the generation, in the place of one that was lost if it names that."""
        self._check(latest)
        if lost is not None and lost in latest.flushed:
            return replace(
                latest, flushed=tuple(flushed if f == lost else f for f in latest.flushed)
            )
        if latest.current_generation > table.generation:
            # An earlier try got through though the store did not say so.
            return None
        if not self._is_stored(flushed):
            raise StoreUnavailableError(
                f"generation {table.generation} of region {self._region_id} was collected before "
                "the manifest could name it; it is written again"
            )
        return replace(
            latest,
            current_generation=table.generation + 1,
            replay_after=max(latest.replay_after, table.last_position),
            wal_last_seen=max(latest.wal_last_seen, table.last_position),
            flushed=(*latest.flushed, flushed),
        )

    def _is_stored(self, flushed: FlushedGeneration) -> bool:
        """Whether a generation is whole: what its flush writes first is there, and what last."""
        folder = generation_dir(self._region_id, flushed.path)
        first, _ = table_manifest_keys(1)
        return all(self._store.exists(f"{folder}/{name}") for name in (BLOOM_FILTER_NAME, first))

    def _check(self, latest: RegionManifest) -> None:
        if latest.writer_epoch != self.epoch:
            raise RegionFencedError(
                f"region {self._region_id} was claimed by another writer (epoch "
                f"{latest.writer_epoch}, ours is {self.epoch}); open a new writer to claim it back"
            )

    def _learn(self, manifest: RegionManifest) -> None:
        with self._lock:
            if manifest.version > self._known.version:
                self._known = manifest
