"""Writers of one region, by memwal's claim, replay, log and flush; only the files are modelled."""

import pickle
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from simulation.base import BaseClient
from simulation.lake import DELETED, Lake, Rows, rows_key
from simulation.reads import read_table
from simulation.store import SimulatedStore
from simulation.world import Process

from memwal.errors import (
    MemWalError,
    OutcomeUnknownError,
    RegionFencedError,
    StoreError,
    StoreUnavailableError,
)
from memwal.format.paths import (
    BLOOM_FILTER_NAME,
    generation_dir,
    generation_name,
    table_manifest_keys,
)
from memwal.format.region_manifest import FlushedGeneration
from memwal.lsm.wal.appender import LogAppender
from memwal.lsm.wal.claim import ClaimedRegion, claim_region
from memwal.lsm.wal.logged_rows import convert_entry
from memwal.lsm.wal.replay import has_replayed, replay
from memwal.writer.takeovers import is_not_logged

CHECK_SECONDS = 10.0


@dataclass(eq=False)
class MemTable:
    """Rows in memory that become a generation."""

    generation: int
    rows: Rows = field(default_factory=dict)
    last_position: int = 0


class Writer:
    """One process that wants a region, and claims it again whenever it loses it.

    One that reopens does so within the write that was refused, as ``WriterOptions(reopen=True)``
    has it.
    """

    def __init__(
        self, lake: Lake, process: Process, region: UUID, *, reopens: bool = False
    ) -> None:
        self._lake = lake
        self._world = lake.world
        self._process = process
        self._region = region
        self._reopens = reopens
        self._row_schema = lake.format.row_schema
        self._store = SimulatedStore(lake.world, process, lake.objects)
        self._base = BaseClient(lake.base, process)
        self._ended: Exception | None = None

    def live(self) -> None:
        """Write until somebody kills it."""
        while True:
            try:
                self._own()
            except MemWalError as error:
                self._world.tell(f"gives up: {type(error).__name__}: {str(error)[:100]}")
            self._world.sleep(self._world.dice.uniform(0.1, 20))

    def finish(self) -> None:
        """Claim the region and flush what is in its log."""
        self._claim()
        self._seal()
        while self._sealed:
            self._flush_next()

    def _open(self) -> None:
        self._claim()
        self._process.threads = [t for t in self._process.threads if not t.dead]
        self._world.start(self._process, partial(self._flush_while, self._claimed))

    def _own(self) -> None:
        self._open()
        dice = self._world.dice
        for _ in range(dice.choice([3, 20, 100])):
            self._world.sleep(dice.choice([0.001, 0.01, 0.5, 5.0]) * dice.random())
            if self._ended is not None:
                raise self._ended
            event = dice.random()
            if event < 0.7:
                self._write()
            elif event < 0.85:
                self._seal()
            else:
                self._read()
        self._ended = RegionFencedError("closed")

    def _claim(self) -> None:
        self._ended = None
        claim = claim_region(self._store, self._region, clock=self._world.clock)
        self._world.tell(f"claims {self._region.int} with epoch {claim.manifest.writer_epoch}")
        self._lake.truth.fence(self._region, claim.manifest.writer_epoch, self._world.now)
        self._claimed_manifest, self._writer_id = claim.manifest, claim.writer_id
        self._claimed = ClaimedRegion(self._store, claim.manifest)
        self._active = MemTable(claim.manifest.current_generation)
        self._sealed: list[MemTable] = []
        self._log = LogAppender(
            self._store,
            claim,
            schema=self._row_schema.schema,
            logged=self._row_schema.logged,
            convert=partial(convert_entry, self._row_schema, self._region),
            verify_epoch=self._claimed.verify,
            start_check=lambda: lambda: None,
            check_interval=CHECK_SECONDS,
            clock=self._world.clock,
            has_keys=self._lake.format.has_keys,
        )
        for found in replay(self._store, claim, row_schema=self._row_schema, max_bytes=1 << 26):
            if self._active.rows:
                self._sealed.append(self._active)
            assert found.batches is not None
            rows = self._lake.format.shown(found.batches)
            self._active = MemTable(found.generation, rows, found.last_position)

    def _write(self) -> None:
        lake, dice = self._lake, self._world.dice
        keys = lake.choose(self._region, dice.randint(1, 3))
        deletes = 0.25 if lake.format.has_keys else 0.0
        rows = {key: DELETED if dice.random() < deletes else lake.new_value() for key in keys}
        position = None
        while position is None:
            writes = lake.begin(rows, epoch=self._claimed_manifest.writer_epoch)
            position = self._append(rows)
        lake.truth.acknowledge(writes, self._world.now, position=position)

    def _append(self, rows: Rows) -> int | None:
        """Return the position of the rows in the log; None if they are to be written again."""
        table, log, put = self._active, self._log, None
        prepared = log.prepare(self._lake.format.stored(rows), generation=table.generation)
        try:
            put = log.put(prepared)
            log.acknowledge(put)
        except MemWalError as error:
            self._ended = error
            if not (self._reopens and type(error) in (RegionFencedError, OutcomeUnknownError)):
                raise
            return self._find_again(log.next_position if put is None else put.position, error)
        self._lake.format.join(table.rows, self._lake.format.shown(put.entry.batches))
        table.last_position = put.position
        return put.position

    def _find_again(self, maybe_at: int, error: MemWalError) -> int | None:
        """Claim the region back, as :mod:`memwal.writer.open_regions` does, and look for the rows.

        They are in memory then if the claim has replayed them.
        """
        writer_id = self._writer_id
        self._world.sleep(self._world.dice.uniform(0.01, 2))
        self._open()
        if is_not_logged(error):
            return None
        found = has_replayed(self._store, self._claimed_manifest, maybe_at, writer_id)
        if found is None:
            raise error
        self._world.tell(f"reopens, and has entry {maybe_at} replayed: {found}")
        return maybe_at if found else None

    def _seal(self) -> None:
        if self._active.rows:
            self._sealed.append(self._active)
            self._active = MemTable(self._active.generation + 1)

    # Flush

    def _flush_while(self, mine: ClaimedRegion) -> None:
        """What the thread does that flushes."""
        while self._claimed is mine and self._ended is None:
            try:
                if self._sealed:
                    self._flush_next()
            except RegionFencedError as error:
                if self._claimed is mine:
                    self._ended = error
                return
            except MemWalError as error:
                self._world.tell(f"flush fails: {error}")
            self._world.sleep(self._world.dice.uniform(0.05, 3))

    def _flush_next(self) -> None:
        table, claimed = self._sealed[0], self._claimed
        claimed.publish_generation(table, partial(self._write_generation, table))
        self._world.tell(f"flushed generation {table.generation} of {self._region.int}")
        if self._claimed is claimed:
            self._sealed.remove(table)

    def _write_generation(self, table: MemTable) -> FlushedGeneration:
        name = generation_name(table.generation, f"{self._world.dice.getrandbits(32):08x}")
        folder = generation_dir(self._region, name)
        self._store.put(rows_key(self._region, name), pickle.dumps(table.rows))
        self._store.put(f"{folder}/{table_manifest_keys(1)[0]}", b"version 1")
        self._store.put(f"{folder}/{BLOOM_FILTER_NAME}", b"keys")
        if not self._store.exists(rows_key(self._region, name)):
            raise StoreUnavailableError("it was collected while it was written")
        return FlushedGeneration(
            region_id=self._region,
            generation=table.generation,
            path=name,
            memory_bytes=1,
            rows=len(table.rows),
            key_bytes=1,
        )

    # Strong reads

    def _read(self) -> None:
        """Look at every key of the region; what was acknowledged must be there."""
        since = self._world.now
        tables = (*self._sealed, self._active)
        memory = {self._region: [(table.generation, dict(table.rows)) for table in tables]}
        form = self._lake.format
        try:
            seen = read_table(self._store, self._base, [self._region], memory, form)
            self._claimed.verify()
        except StoreError:
            return
        lake, region = self._lake, self._region
        lake.check(seen, f"the owner of {region.int}", since=since, region=region)
