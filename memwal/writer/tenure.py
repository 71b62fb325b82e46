"""What a writer may do to its region's manifest for as long as nobody else claims the region."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from memwal.errors import RegionFencedError, StoreUnavailableError
from memwal.format.names import BLOOM_FILTER_NAME, ORPHAN_MARK_NAME, generation_dir
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
            Writes the rows into a new folder, complete and durable.

        Raises
        ------
        RegionFencedError
            Another writer claimed the region; it replays the rows.
        StoreUnavailableError
            This process slept for so long that the folder was taken for the rest of a flush that
            died, and collected. To be called again.
        """
        self._learn(self._manifests.update(partial(self._with, table=table, flushed=write())))

    def _with(
        self, latest: RegionManifest, *, table: Nameable, flushed: FlushedGeneration
    ) -> RegionManifest | None:
        """The manifest with the generation."""
        self._check(latest)
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
        """Whether a generation is still there, and stays when the next version names it.

        A collector that takes it for an orphan leaves a mark, takes that version, and deletes
        everything in the folder, the bloom filter last, before the mark: asked for in this order.
        """
        folder = generation_dir(self._region_id, flushed.path)
        marked = self._store.exists(f"{folder}/{ORPHAN_MARK_NAME}")
        return not marked and self._store.exists(f"{folder}/{BLOOM_FILTER_NAME}")

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
