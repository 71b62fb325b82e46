"""Check beside each append that the table still has the region spec by which its writer routes.

LanceDB's ``unset_lsm_write_spec`` takes the MemWAL index away: no reader reads the logs then.
Setting a spec again may divide the rows in another way, under the same number. An append must not
be acknowledged after either. Reading the newest version beside each append would cost more than the
append, so a writer asks whether there is a version after the one that it read last, and reads the
newest one only then. Each commit makes the next number. On a local disk the time of the folder of
versions tells, by one ``stat``; elsewhere a HEAD of the next version does, beside the put.

The version after the last one may have been made and cleaned up since. On a local disk the deletion
changes the time of the folder as well. Elsewhere an answer holds only if the look before it was
less than ``_MAX_GAP_SECONDS`` ago, by a clock that counts suspended time and is read after the
answer: a process that was paused for longer lists the versions. Only an unset with a commit and a
cleanup within that time could be missed.

A change that finished before an append began is noticed before that append is acknowledged. An
unset that runs at the same time may come before or after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from memwal.base_table.commit import newest_spec
from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import RegionSealedError, TableSetupError
from memwal.format.memwal_index import StoredRegionSpec
from memwal.format.paths import VERSIONS_DIR, table_manifest_keys
from memwal.storage.location import TableLocation
from memwal.storage.object_store import STAMP_SETTLES_NS
from memwal.util.clock import boot_seconds

_MAX_GAP_SECONDS: Final = 2.0

FinishCheck = Callable[[], object]
"""Waits for a check that was started, and raises the error of the check."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The newest version, as it was read last."""

    base: BaseTable
    stamp: int | None  # time of the folder of versions, read before the version
    settled: bool  # whether a later change has another time
    at: float  # when the last look began that found no newer version


class SpecCheck:
    """Checks for the region writers of one table writer. Thread-safe.

    ``executor`` runs checks that wait for a store. A thread may replace the version that another
    thread has seen by an older version: its successor exists, so that the next look reads the
    newest one.
    """

    def __init__(
        self,
        location: TableLocation,
        executor: Executor,
        *,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self._location = location
        self._executor = executor
        self._clock = clock
        self._seen: _Seen | None = None
        # Tables change from the older naming scheme to the inverted one, and never back.
        self._inverted = False

    def check_claim(self, spec: StoredRegionSpec | None) -> None:
        """Raise RegionSealedError unless a region spec is the newest one, which routes new rows.

        A writer must call this after it claimed a region and before it writes to it:
        ``memwal.add_region_spec`` stores the new spec first, and then seals all regions that exist.
        ``spec`` is None if the writer names its region, in a table without specs. Raises
        TableSetupError if the table has no MemWAL any more.
        """
        base = self._read()
        newest = newest_spec(base)
        if (newest and newest.spec_id) != (spec and spec.spec_id):
            raise _divided_anew(base)

    def start(self, spec: StoredRegionSpec | None) -> FinishCheck:
        """Start to check that the table has a region spec; None if regions are named by hand.

        A check of a local table is done when this returns. The spec need not be the newest one:
        regions of earlier specs take rows until they are sealed. Raises, or the check does,
        TableSetupError if the table has no MemWAL any more, RegionSealedError if it has other
        specs, and errors of the store.
        """
        check = partial(self._check, spec)
        if self._location.store.is_local:
            check()
            return _done
        try:
            return self._executor.submit(check).result
        except RuntimeError:
            # The writer is being closed, and this append was on its way.
            check()
            return _done

    def _check(self, spec: StoredRegionSpec | None) -> None:
        seen = self._seen
        base = self._read() if seen is None or self._may_be_old(seen) else seen.base
        specs = base.details.region_specs
        if spec not in specs if spec is not None else specs:
            raise _divided_anew(base)

    def _may_be_old(self, seen: _Seen) -> bool:
        """Return whether there may be a newer version than the one that was seen."""
        began = self._clock()
        stamp = self._location.store.folder_stamp(VERSIONS_DIR)
        if stamp is None:
            if self._has_successor(seen.base.version):
                return True
            if self._clock() - seen.at >= _MAX_GAP_SECONDS and not self._is_latest(seen.base):
                return True
            self._seen = replace(seen, at=began)
            return False
        if stamp != seen.stamp:
            return True
        if seen.settled:
            return False
        settles = time.time_ns() - stamp >= STAMP_SETTLES_NS
        if self._has_successor(seen.base.version):
            return True
        if settles:
            self._seen = replace(seen, settled=True)
        return False

    def _has_successor(self, version: int) -> bool:
        store = self._location.store
        if not self._inverted:
            self._inverted = store.exists(table_manifest_keys(version)[0])
        inverted, plain = table_manifest_keys(version + 1)
        return store.exists(inverted) or (not self._inverted and store.exists(plain))

    def _is_latest(self, base: BaseTable) -> bool:
        with lance_errors(f"opening {self._location}"):
            return int(base.dataset.latest_version) == base.version

    def _read(self) -> BaseTable:
        """Read the newest version; TableSetupError if it has no MemWAL."""
        at = self._clock()
        stamp = self._location.store.folder_stamp(VERSIONS_DIR)
        base = open_base(self._location)
        if base.index is None:
            raise TableSetupError(
                f"MemWAL was taken away from {self._location}, so that nobody reads its log; this "
                "write is not acknowledged. Write to the table directly, or enable MemWAL again "
                "with memwal.enable(uri) and open a new writer"
            )
        self._seen = _Seen(base, stamp, settled=False, at=at)
        return base


def _divided_anew(base: BaseTable) -> RegionSealedError:
    return RegionSealedError(
        f"{base.location} is divided into regions in another way by now; open a new writer"
    )


def _done() -> None:
    """Finish a check that is done."""
