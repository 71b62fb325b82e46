"""Everybody beside the writers: mergers, index builders, collectors, readers, taggers and so on.

Collectors are memwal's own. A merge is ``memwal.jobs.merge.commit`` or
``memwal.jobs.merge.divided`` told again step by step, since what these ask Lance for is a model
here.
"""

import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from random import Random
from types import SimpleNamespace
from typing import NamedTuple
from uuid import UUID

from simulation.base import BaseClient, Version
from simulation.lake import DELETED, Lake, Rows, rows_key
from simulation.reads import read_manifests, read_table, read_through
from simulation.store import SimulatedStore
from simulation.world import Process

from memwal.base_table.refs import Ref, parse_consumer_tag_key
from memwal.base_table.region_marks import read_marks
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    MemWalError,
    ObjectNotFoundError,
    StoreError,
)
from memwal.feed.consumer import Consumer
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.gc.collector import GcContext
from memwal.jobs.gc.consumers import collect_consumers
from memwal.jobs.gc.decision import Reason
from memwal.jobs.gc.history import StoredVersions
from memwal.jobs.gc.job import collect_region
from memwal.jobs.gc.pins import Pin, Pins, _version_age, read_refs
from memwal.jobs.options import GcOptions
from memwal.lsm.wal.follow import Followed, LogFollower, UnflushedLog
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.object_store import ObjectInfo

DIRECT = UUID(int=0)
GRACE = timedelta(minutes=5)
RETENTION = timedelta(minutes=6)
ORPHAN_AGE = timedelta(minutes=8)
CONSUMER_AGE = timedelta(minutes=40)
GC_OPTIONS = GcOptions(
    dry_run=False,
    grace_seconds=GRACE.total_seconds(),
    retention_seconds=RETENTION.total_seconds(),
    orphan_grace_seconds=ORPHAN_AGE.total_seconds(),
    version_retention_seconds=RETENTION.total_seconds(),
    consumer_seconds=CONSUMER_AGE.total_seconds(),
)

# Of requests between a look at the manifest and the last file: what a reader may rely on.
_WITHIN_GRACE = GRACE.total_seconds() - 120
# Since a version was opened: for how long what it needs is still named.
_WITHIN_RETENTION = max(GRACE, RETENTION).total_seconds()


def _most_of(dice: Random, seconds: float) -> float:
    """Any part of some time, and often nearly all of it."""
    return seconds * dice.choice([dice.random(), 0.95])


class Opened(NamedTuple):
    """What a fresh reader looks up before it reads rows."""

    version: Version
    manifests: Mapping[UUID, RegionManifest]
    logs: Mapping[UUID, Followed]


class Client:
    """A process with a table."""

    divided = 0.5  # share of its merges
    fresh = 0.5  # share of its reads
    consumer: Consumer | None = None

    def __init__(self, lake: Lake, process: Process) -> None:
        self.lake = lake
        self.world = lake.world
        self.store = SimulatedStore(lake.world, process, lake.objects)
        self.base = BaseClient(lake.base, process)
        self.followers: dict[UUID, LogFollower] = {}

    def again_and_again(self, job: Callable[[], None], seconds: float) -> None:
        """Do something at intervals, whatever the store says."""
        while True:
            self.world.sleep(self.world.dice.uniform(0, seconds))
            try:
                job()
            except MemWalError as error:
                self.world.tell(f"fails: {type(error).__name__}: {str(error)[:100]}")

    # Merge

    def merge(self, *, everything: bool = False) -> None:
        """Merge some generations of some regions, by one worker or divided into tasks."""
        dice = self.world.dice
        self._help()
        regions = self.lake.regions
        if not everything:
            regions = tuple(dice.sample(regions, dice.randint(1, len(regions))))
        for _ in range(20):
            read = self.base.open()
            try:
                wanted, rows = self._collect(regions, read, everything=everything)
            except ObjectNotFoundError:
                # Somebody merged it, and a collector took it, since the manifest was read.
                continue
            if not wanted:
                return
            try:
                if not self.lake.format.has_keys:
                    self._commit_appended(read, wanted, rows)
                elif dice.random() < self.divided:
                    self._commit_divided(read, wanted, rows)
                else:
                    self._commit(read, wanted, rows)
            except ConflictError as error:
                self.world.tell(f"merge is refused: {error}")
                continue
            self.world.tell(f"merged { ({region.int: upto for region, upto in wanted.items()}) }")
            if not everything:
                return

    def _collect(
        self, regions: tuple[UUID, ...], read: Version, *, everything: bool
    ) -> tuple[dict[UUID, int], Rows]:
        """Up to which generation to merge each region, and the newest row of each key."""
        wanted: dict[UUID, int] = {}
        rows: Rows = {}
        for region in regions:
            manifest = RegionManifestStore(self.store, region).read_latest()
            merged = read.merged.get(region, 0)
            waiting = [f for f in manifest.flushed if f.generation > merged] if manifest else []
            if not everything:
                waiting = waiting[: self.world.dice.randint(1, 4)]
            for flushed in waiting:
                stored = self.store.get(rows_key(region, flushed.path))
                self.lake.format.join(rows, pickle.loads(stored))
                wanted[region] = flushed.generation
        return wanted, rows

    def _commit(self, read: Version, wanted: Mapping[UUID, int], rows: Rows) -> None:
        progress = {region: read.merged.get(region, 0) for region in wanted}
        gone = {key for key, value in rows.items() if value == DELETED}

        def is_pending(version: Version) -> bool:
            return all(version.merged.get(region, 0) == progress[region] for region in wanted)

        if gone:
            before_deletes = read.number
            self.base.commit(read, gone=gone, accept=is_pending)
            read = self.base.open()
            if not is_pending(read):
                raise ConflictError("somebody merged meanwhile")
            between = self.base.versions_after(before_deletes)
            if any(v.rows_of.keys() & wanted.keys() for v in between if v.number <= read.number):
                raise ConflictError("a divided merge committed rows after the deletes")
        before = [read]

        def accept(version: Version) -> bool:
            brought = set(version.rows) - set(before[-1].rows)
            moved = version.merged != before[-1].merged
            before.append(version)
            return is_pending(version) and (moved or not brought)

        upserts = {key: value for key, value in rows.items() if value != DELETED}
        self.base.commit(read, rows=upserts, marks=wanted, accept=accept)

    def _commit_divided(self, read: Version, wanted: Mapping[UUID, int], rows: Rows) -> None:
        progress = {region: read.merged.get(region, 0) for region in wanted}
        gone = {key for key, value in rows.items() if value == DELETED}
        upserts = {key: value for key, value in rows.items() if value != DELETED}
        latest = read
        for _ in range(5):
            if any(latest.merged.get(region, 0) != progress[region] for region in wanted):
                raise ConflictError("somebody merged meanwhile")
            try:
                own = self.base.commit_rows(latest, gone=gone, rows=upserts, merged=wanted)
                break
            except ConflictError:
                latest = self.base.open()
        else:
            raise ConflictError("others were always faster")
        self._record(own, wanted)

    def _commit_appended(self, read: Version, wanted: Mapping[UUID, int], rows: Rows) -> None:
        """Add the rows of a table without a key, with the progress in the same commit."""
        progress = {region: read.merged.get(region, 0) for region in wanted}
        for _ in range(5):
            try:
                self.base.append(read, rows=rows, marks=wanted)
                break
            except ConflictError:
                read = self.base.open()
                if any(read.merged.get(region, 0) != progress[region] for region in wanted):
                    raise
        else:
            raise ConflictError("others were always faster")

    def _record(self, own: Version, wanted: Mapping[UUID, int]) -> None:
        """Record the progress of the regions that nobody merged since the rows."""
        for _ in range(5):
            newest = self.base.open()
            marks = {
                region: upto
                for region, upto in wanted.items()
                if newest.merged.get(region, 0) == own.merged.get(region, 0) < upto
            }
            for version in self.base.versions_after(own.number):
                if version.number <= newest.number:
                    if version.kind == "other":
                        marks = {}
                    for region in version.rows_of:
                        marks.pop(region, None)
            if not marks:
                break
            try:
                self.base.record(newest, marks)
                break
            except ConflictError:
                continue
        if any(self.base.open().merged.get(r, 0) < upto for r, upto in wanted.items()):
            raise ConflictError("somebody merged the same regions before the progress")

    def _help(self) -> None:
        """Record the progress of mergers that died."""
        for version in self.base.versions_after(0):
            merged = self.base.open().merged
            if any(merged.get(region, 0) < upto for region, upto in version.rows_of.items()):
                with suppress(ConflictError):
                    self._record(version, version.rows_of)

    # Index

    def build_index(self) -> None:
        """Catch the index up with what is merged."""
        read = self.base.open()
        if read.caught_up != read.merged:
            self.world.sleep(self.world.dice.uniform(0, 20))
            self.base.catch_up(read, read.merged)

    # Collection

    def collect(self) -> None:
        """Collect every region."""
        options, now = GC_OPTIONS, self.world.time()
        location = SimpleNamespace(store=self.store, base=self.base)
        refs = read_refs(location)
        versions = self.lake.base.versions
        held = {
            key: versions[tag.version - 1]
            for key, _, _ in refs
            if (tag := parse_consumer_tag_key(key)) is not None
        }
        tags = self.base.tags()
        read = self.base.open()
        recent = self.lake.base.latest_at(now - options.retention)
        pins = Pins(
            (
                Pin(reason=Reason.NOT_MERGED, message="", generations=read.merged),
                Pin(reason=Reason.INDEX_BEHIND, message="", generations=read.caught_up),
                *(
                    Pin(
                        reason=Reason.RETENTION,
                        message="",
                        generations={r: version.covered(r) for r in self.lake.regions},
                    )
                    for version in (recent, *tags.values(), *held.values())
                ),
            ),
            refs,
        )
        context = GcContext(
            location=location,
            options=options,
            now=now,
            pins=pins,
            marks=read_marks(self.store),
        )
        for region in self.lake.regions:
            for decision in collect_region(context, region):
                if decision.delete:
                    self.world.tell(f"collects {decision.kind} {decision.what} of {region.int}")
        for decision in collect_consumers(context):
            if decision.delete:
                self.world.tell(f"collects {decision.what}")
        stored = {v.number: ObjectInfo("", 0, v.written) for v in versions}
        found = [Ref(key, version.number) for key, version in held.items()]
        age = _version_age(StoredVersions(stored), found, options, now)
        assert age is not None
        self.base.clean_up(age, self.lake.tagged)

    # Readers

    def read(self) -> None:
        """Look at the whole table, flushed or also what is only in the logs."""
        if self.fresh and self.world.dice.random() < self.fresh:
            self.read_fresh()
        else:
            self.read_flushed()

    def read_flushed(self) -> None:
        """Look at the whole table; what was flushed before must be there."""
        since, flushed = self.world.now, self.lake.flushed()
        while True:
            began = self.world.now
            try:
                seen = read_table(self.store, self.base, self.lake.regions, {}, self.lake.format)
                break
            except ObjectNotFoundError:
                late = self.world.now - began > _WITHIN_GRACE
            except StoreError:
                return
            assert late, "a generation is gone that a reader found named within the grace period"
        self.lake.check(seen, "a reader", since=since, flushed=flushed)

    def read_for_long(self, then: Callable[[], None] = lambda: None) -> None:
        """Look at the whole table through a version that was opened long ago.

        Of what it did not have merged, all is named for a retention; what is named then may be
        fetched for a grace period.

        Parameters
        ----------
        then : callable, optional
            Called when the version is open.
        """
        dice, since, flushed = self.world.dice, self.world.now, self.lake.flushed()
        try:
            version = self.base.open()
            then()
            self.world.sleep(_most_of(dice, since + _WITHIN_RETENTION - self.world.now))
            manifests = read_manifests(self.store, self.lake.regions)
            named = self.world.now
            if named - since > _WITHIN_RETENTION:
                return
            self.world.sleep(_most_of(dice, _WITHIN_GRACE))
            seen = read_through(self.store, version, manifests, {}, self.lake.format)
        except ObjectNotFoundError:
            late = self.world.now - named > _WITHIN_GRACE
            assert late, "a generation is gone that was named, and needed, within the grace period"
        except StoreError:
            return
        else:
            self.lake.check(seen, "a long reader", since=since, flushed=flushed)

    def read_fresh(self) -> None:
        """Look at the whole table and at the logs; what was acknowledged before must be there."""
        since = self.world.now
        while True:
            try:
                version, manifests, logs = self.open_fresh()
                memory = {region: self.memory_of(log) for region, log in logs.items()}
                seen = read_through(self.store, version, manifests, memory, self.lake.format)
                break
            except ObjectNotFoundError:
                continue
            except StoreError:
                return
        self.lake.check(seen, "a fresh reader", since=since)

    def open_fresh(self) -> Opened:
        """Look up manifests, base table and logs, as :func:`memwal.feed.state.read_state`."""
        while True:
            manifests = {
                region: manifest
                for region, manifest in read_manifests(self.store, self.lake.regions).items()
                if manifest is not None
            }
            version = self.base.open()
            logs = {region: UnflushedLog.behind(m) for region, m in manifests.items()}
            if any(version.merged.get(r, 0) >= log.generation for r, log in logs.items()):
                continue
            try:
                followed = {region: self._follow(log) for region, log in logs.items()}
                for region, manifest in manifests.items():
                    # Here a pause is longer than anything is kept: the clock tells nothing.
                    if not RegionManifestStore(self.store, region).is_latest(manifest):
                        followed[region] = self._follow(logs[region], listed=True)
            except ObjectNotFoundError:
                continue
            except CorruptDataError as error:
                raise AssertionError(f"a fresh reader finds a damaged log: {error}") from error
            return Opened(version, manifests, followed)

    def memory_of(self, log: Followed) -> list[tuple[int, Rows]]:
        """Rows of a log, by the generation that they will be."""
        form = self.lake.format
        return [(run.generation, form.shown(run.snapshot.view.batches)) for run in log.rows]

    def _follow(self, log: UnflushedLog, *, listed: bool = False) -> Followed:
        """Rows of a log, as :func:`memwal.reader.sources.log_tails.read_tails` reads them."""
        follower = self.followers.setdefault(log.region_id, LogFollower(self.store, log.region_id))
        row_schema = self.lake.format.row_schema
        return follower.follow(log, row_schema, max_bytes=1 << 26, listed=listed)

    # Others

    def tag(self) -> None:
        """Tag the newest version, or delete a tag."""
        dice = self.world.dice
        tags = self.base.tags()
        if tags and dice.random() < 0.6:
            self.base.untag(dice.choice(sorted(tags)))
        else:
            self.base.tag_newest(f"tag-{dice.getrandbits(16)}")

    def write_directly(self) -> None:
        """Upsert a row past the log, under a key that no region has."""
        lake = self.lake
        rows = {1_000 + self.world.dice.randrange(3): lake.new_value()}
        if not lake.format.has_keys:
            rows = dict.fromkeys(lake.choose(DIRECT, 1), lake.new_value())
        writes = lake.begin(rows)
        for _ in range(20):
            try:
                self.base.commit(self.base.open(), rows=rows, alone=True)
            except ConflictError:
                continue
            lake.truth.acknowledge(writes, self.world.now)
            return
