"""The table of a simulated world: its store, its base table, and what somebody all-knowing sees."""

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import pyarrow as pa
from simulation.base import BaseTable
from simulation.store import Objects
from simulation.world import World
from support.oracles.truth import Truth, Write

from memwal.base_table.refs import parse_consumer_tag_key
from memwal.feed.consumer_state import ConsumerState, Phase
from memwal.feed.token import FeedToken
from memwal.format.paths import (
    consumer_key,
    generation_dir,
    manifest_dir,
    parse_manifest_name,
    parse_wal_name,
    wal_dir,
    wal_key,
)
from memwal.format.region_manifest import FlushedGeneration, RegionManifest
from memwal.format.wal_entry import WalEntry, decode_entry
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.log import needs_replay

KINDS = (
    None,
    pa.string(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.string()),
)
"""Types of a column that tables have or not: those that categories of pandas are stored as."""

Rows = dict[int, int]

DELETED = 0
"""In place of the value of a row that is deleted."""

Memory = Mapping[UUID, Sequence[tuple[int, Rows]]]
"""Unflushed rows of regions, by the generation that they will be."""

CONSUMER = "c"
"""Name of the consumer that each table has."""

_REGION_ROWS = 1_000_000


class RowFormat:
    """Rows as they go into the log, with a category for each value if the table has such a column.

    In a table without a key, no two rows have the same number here: one that is there twice shows.

    Attributes
    ----------
    row_schema : RowSchema
    has_keys : bool
    """

    def __init__(self, kind: pa.DataType | None, *, has_keys: bool = True) -> None:
        self.has_keys = has_keys
        key = ["id"] if has_keys else []
        fields = [pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())]
        fields += [] if kind is None else [pa.field("kind", kind)]
        schema = _identified(fields)
        if kind == KINDS[-1]:
            plain = _identified([*fields[:2], pa.field("kind", pa.string())])
            self.row_schema = RowSchema(plain, key, logged=schema)
        else:
            self.row_schema = RowSchema(schema, key)

    def stored(self, rows: Mapping[int, int]) -> list[pa.RecordBatch]:
        """Rows as they go into the log."""
        schema = self.row_schema.schema
        values = [None if value == DELETED else value for value in rows.values()]
        kinds = [None if value is None else f"kind {value}" for value in values]
        columns = [pa.array(rows, pa.int64()), pa.array(values, pa.int64())]
        if len(schema) > 3:
            columns.append(pa.array(kinds, pa.string()).cast(schema.field("kind").type))
        columns.append(pa.array([value is None for value in values]))
        return [pa.record_batch(columns, schema=schema)]

    def shown(self, batches: Iterable[pa.RecordBatch]) -> Rows:
        """The newest row of each key in stored batches."""
        rows: Rows = {}
        for batch in batches:
            keys, values, *kinds, deleted = (column.to_pylist() for column in batch.columns)
            for key, value, is_deleted in zip(keys, values, deleted, strict=True):
                self.join(rows, {key: DELETED if is_deleted else value})
            for column in kinds:
                wanted = [None if value is None else f"kind {value}" for value in values]
                assert column == wanted, f"categories of other rows: {column}, not {wanted}"
        return rows

    def join(self, rows: Rows, newer: Mapping[int, int]) -> None:
        """Put newer rows over others; without keys, none is there already."""
        twice = rows.keys() & newer.keys()
        assert self.has_keys or not twice, f"rows are there twice: {sorted(twice)}"
        rows |= newer


def _identified(fields: Iterable[pa.Field]) -> pa.Schema:
    return pa.schema(
        field.with_metadata({"lance:field_id": str(number)}) for number, field in enumerate(fields)
    )


@dataclass(eq=False)
class Copy:
    """The rows that a consumer keeps of a table, in one transaction with the token of its feed.

    Takes nothing from a process whose claim is older than one that it knows.
    """

    epoch: int = 0
    token: str | None = None
    rows: Rows = field(default_factory=dict)

    def store(self, epoch: int, token: str | None, rows: Rows) -> bool:
        """Return whether the rows and their token are stored."""
        if epoch < self.epoch:
            return False
        self.epoch, self.token, self.rows = epoch, token, rows
        return True


def rows_key(region: UUID, path: str) -> str:
    """Where the rows of a generation stand, instead of the files of a Lance table."""
    return f"{generation_dir(region, path)}/rows"


class Lake:
    """Everything that the processes share.

    Attributes
    ----------
    objects : dict
    base : BaseTable
    truth : Truth
    copy : Copy
    regions : tuple of UUID
    retention : timedelta
        For how long a version may be read after it was replaced.
    format : RowFormat
    """

    def __init__(
        self,
        world: World,
        regions: int,
        keys: int,
        retention: timedelta,
        kind: pa.DataType | None = None,
        *,
        has_keys: bool = True,
    ) -> None:
        self.world = world
        self.format = RowFormat(kind, has_keys=has_keys)
        self.retention = retention
        self._keys = keys
        self.objects: Objects = {}
        self.base = BaseTable(world)
        self.truth: Truth[int] = Truth(self.region_of)
        self.copy = Copy()
        self.regions = tuple(UUID(int=number + 1) for number in range(regions))
        self._values = 0
        self._paths: dict[tuple[UUID, int], str] = {}
        self._seen: dict[UUID, RegionManifest] = {}
        self._seen_state: ConsumerState | None = None

    def new_value(self) -> int:
        """A value that nobody wrote yet."""
        self._values += 1
        return self._values

    def choose(self, region: UUID, count: int) -> list[int]:
        """Some keys of a region, or numbers of new rows of a table without a key."""
        if self.format.has_keys:
            keys = range(region.int * 100, region.int * 100 + self._keys)
            return self.world.dice.sample(keys, count)
        return [region.int * _REGION_ROWS + self.new_value() for _ in range(count)]

    def region_of(self, key: int) -> UUID:
        """The region of a row; one that nobody claims for rows that are written directly."""
        return UUID(int=key // (100 if self.format.has_keys else _REGION_ROWS))

    def begin(self, rows: Rows, *, epoch: int = 0) -> list[Write[int]]:
        """Rows are about to be written, under a claim of their region."""
        return self.truth.begin(
            {k: v or None for k, v in rows.items()}, self.world.now, epoch=epoch
        )

    def check(
        self,
        seen: Rows,
        what: str,
        *,
        since: float,
        flushed: Mapping[UUID, int] | None = None,
        region: UUID | None = None,
    ) -> None:
        """Raise AssertionError when a reader saw what it must not.

        Parameters
        ----------
        since : float
            When the read began.
        flushed : mapping, optional
            Up to which position the log of each region was flushed then, for readers that see
            nothing else. None: they see everything. A moment, as in :mod:`histories`, would have to
            be before every row that may have been unflushed, also one without an answer, and would
            allow reads to miss writes that are flushed for certain.
        region : UUID, optional
            Of whose rows alone it is.
        """

        def must_see(write: Write[int]) -> bool:
            is_seen = flushed is None or (write.position or 0) <= flushed.get(write.region, 0)
            return is_seen and write.end <= since

        self.truth.check(seen, f"{what} at {since:.3f}", must_see, region=region)

    # All-knowing

    def tagged(self) -> set[int]:
        """Numbers of the versions that have a tag, of a user or of the consumer."""
        placed = filter(None, map(parse_consumer_tag_key, self.objects))
        return {*(tag.version for tag in placed), *(v.number for v in self.base.tags.values())}

    def manifest(self, region: UUID) -> RegionManifest | None:
        """The newest manifest of a region, whoever may have seen it."""
        inside = f"{manifest_dir(region)}/"
        versions = {
            number: key
            for key in self.objects
            if key.startswith(inside)
            and (number := parse_manifest_name(key.removeprefix(inside))) is not None
        }
        # One that stands behind a gap was put there by somebody who slept through a trim.
        newest = max(versions, default=None)
        if newest is None:
            return None
        return RegionManifest.decode(self.objects[versions[newest]][0], name=versions[newest])

    def flushed(self) -> dict[UUID, int]:
        """Up to which position the log of each region is in generations."""
        found = {region: self.manifest(region) for region in self.regions}
        return {region: m.replay_after for region, m in found.items() if m is not None}

    def look(self) -> None:
        """Raise AssertionError when a promise is broken now."""
        rows = dict(self.base.newest.rows)
        assert len(rows) == len(self.base.newest.rows), "a key is in the base table twice"
        for region in self.regions:
            manifest = self.manifest(region)
            if manifest is None:
                continue
            self._look_at_history(region, manifest)
            merged = self.base.newest.merged.get(region, 0)
            for flushed in manifest.flushed:
                if flushed.generation > merged:
                    self.format.join(rows, self._generation(region, flushed))
            self.format.join(rows, self._logged(region, manifest))
        self._look_at_what_is_kept()
        seen = {key: value for key, value in rows.items() if value != DELETED}
        self.check(seen, "all that is stored", since=self.world.now)

    def _generation(self, region: UUID, flushed: FlushedGeneration) -> Rows:
        key = rows_key(region, flushed.path)
        assert key in self.objects, f"generation {flushed} is named and gone"
        rows: Rows = pickle.loads(self.objects[key][0])
        return rows

    def _entry(self, region: UUID, position: int) -> WalEntry:
        key = wal_key(region, position)
        return decode_entry(self.objects[key][0], name=key)

    def log(self, region: UUID) -> list[int]:
        """The positions of a region's log that are stored, in order."""
        inside = f"{wal_dir(region)}/"
        names = (key.removeprefix(inside) for key in self.objects if key.startswith(inside))
        return sorted(p for name in names if (p := parse_wal_name(name)) is not None)

    def _logged(self, region: UUID, manifest: RegionManifest) -> Rows:
        behind = [p for p in self.log(region) if p > manifest.replay_after]
        for number, position in enumerate(behind, manifest.replay_after + 1):
            assert number == position, f"entry {number} of the log is gone"
        entries = [self._entry(region, position) for position in behind]
        if not self.format.has_keys:
            now = manifest.current_generation
            entries = [e for e in entries if needs_replay(e, current_generation=now)]
        convert = self.format.row_schema.convert_logged
        return self.format.shown(convert(b)[0] for e in entries for b in e.batches if b.num_rows)

    def _look_at_history(self, region: UUID, manifest: RegionManifest) -> None:
        before = self._seen.get(region)
        if before is not None:
            for name in ("version", "writer_epoch", "current_generation", "replay_after"):
                assert getattr(manifest, name) >= getattr(before, name), f"{name} fell back"
        self._seen[region] = manifest
        for flushed in manifest.flushed:
            self._paths[region, flushed.generation] = flushed.path
        numbers = [flushed.generation for flushed in manifest.flushed]
        assert numbers == sorted(set(numbers)), f"generations out of order: {numbers}"

    def _look_at_consumer(self) -> ConsumerState | None:
        stored = self.objects.get(consumer_key(CONSUMER))
        state = None if stored is None else ConsumerState.decode(CONSUMER, stored[0])
        before, self._seen_state = self._seen_state, state
        if before is not None:
            assert state is not None, "the consumer is gone"
            for name in ("number", "epoch", "step"):
                assert getattr(state, name) >= getattr(before, name), f"{name} fell back"
        return state

    def _look_at_what_is_kept(self) -> None:
        """Versions with a tag or of a token, and the newest ones of a retention ago or later."""
        kept = dict(self.base.tags)
        since = self.world.time() - self.retention
        replaced = self.world.time()
        for version in reversed(self.base.versions):
            if replaced < since:
                break
            kept[f"version {version.number}"] = version
            replaced = version.written
        state = self._look_at_consumer()
        if state is not None and state.phase is Phase.ACTIVE:
            # Of the token that is committed, and of one that is stored with the rows, and will be.
            for token in filter(None, (state.token, self.copy.token)):
                number = FeedToken.parse(token).version
                assert number not in self.base.gone, f"version {number} of a token is gone"
                kept[f"the consumer at {number}"] = self.base.versions[number - 1]
        for name, version in kept.items():
            for (region, number), path in self._paths.items():
                if number > version.covered(region):
                    key = rows_key(region, path)
                    assert key in self.objects, f"{name} needs generation {number}, gone"
