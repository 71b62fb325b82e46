"""Copies that follow a table by its feed, through random lives of the table.

After each step one of the copies goes on from its token, and must then be what the table shows. At
the end, so must a copy from each token that was ever given. By the grain "log" it must also have
been told every version that was acknowledged since, in the order of each key.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import lance
import lancedb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.data.merging import DIVIDED
from support.data.tables import SCHEMA, Rows, folder, keys, rows, state
from support.oracles import native
from support.oracles.native import collect_all

import memwal
from memwal.errors import InvalidInputError, TokenExpiredError
from memwal.feed.consumer import Consumer
from memwal.feed.token import FeedToken
from memwal.region.router import Router

KEYS = 12
STEPS = 30
Grain = Literal["net", "log"]
Version = tuple[int, int | None]
"""A key and its number, None for a delete."""
Versions = list[Version]


def versions(changes: pa.Table) -> Versions:
    """What a feed returned, in its order."""
    numbers = zip(changes["id"].to_pylist(), changes["n"].to_pylist(), strict=True)
    is_delete = pc.equal(changes["_change"], "delete").to_pylist()
    return [(key, None if gone else n) for (key, n), gone in zip(numbers, is_delete, strict=True)]


def by_key(told: Iterable[Version]) -> dict[int, list[int | None]]:
    found = defaultdict(list)
    for key, n in told:
        found[key].append(n)
    return dict(found)


def apply(changes: pa.Table, copy: Rows) -> tuple[Rows, Versions]:
    """Return a copy after some changes, and what the logs told."""
    told = versions(changes)
    # The rows belong together.
    for row in changes.filter(pc.equal(changes["_change"], "upsert")).to_pylist():
        assert row["text"] == f"{row['id']}={row['n']}"
    copy = {key: n for key, n in (copy | dict(told)).items() if n is not None}
    return copy, versions(changes.filter(pc.greater(changes["_gen"], 0)))


class Copy(NamedTuple):
    """What a consumer had after a step, and the token to go on with."""

    step: int  # of the token
    token: str | None
    rows: Rows
    is_tagged: bool = False
    is_ahead: bool = False  # its consumer died before it stored the token of these rows


@dataclass
class Life:
    """A table, its writer, and the copies that follow it."""

    table: memwal.Table
    chance: random.Random
    number: int = 0
    writer: memwal.Writer | None = None
    copies: list[Copy] = field(default_factory=lambda: [Copy(0, None, {})])
    acknowledged: list[tuple[int, Version]] = field(default_factory=list)  # with the step of each
    collected: int = 0  # the last step that collected generations
    gave_up: int = 0  # the last step that gave generations up

    def some(self, most: int = 4) -> Rows:
        """Rows of random keys, whose number tells the step."""
        chosen = self.chance.sample(range(KEYS), self.chance.randint(1, most))
        return dict.fromkeys(chosen, self.number)

    def stored(self, values: Rows) -> pa.Table:
        """Rows with the columns that the table has by now."""
        found = rows(values)
        for column in self.table.schema:
            if column.name not in found.schema.names:
                found = found.append_column(column, pa.nulls(len(values), column.type))
        return found

    def note(self, values: Iterable[Version]) -> None:
        self.acknowledged += [(self.number, version) for version in values]

    def open(self) -> memwal.Writer:
        if self.writer is None:
            self.writer = self.table.writer()
        return self.writer

    def close(self) -> None:
        if self.writer is not None:
            self.chance.choice([self.writer.close, self.writer.abort])()
            self.writer = None

    def upsert(self) -> None:
        values = self.some()
        self.open().upsert(self.stored(values))
        self.note(values.items())

    def delete(self) -> None:
        gone = list(self.some(2))
        self.open().delete(keys(*gone))
        self.note((key, None) for key in gone)

    def flush(self) -> None:
        self.open().flush()

    def put_by_lance(self) -> None:
        """Upsert with pylance or LanceDB, which refuse a table that had several region specs."""
        self.close()
        if len(self.table.base().details.region_specs) > 1:
            return
        values = self.some()
        _, spec = self.table.region_spec()
        for region, part in Router(spec, self.table.schema).route(self.stored(values)):
            data = pa.Table.from_batches([part])
            if self.chance.random() < 0.5:
                with native.writer(self.table, region.region_id) as shard:
                    native.put(shard, self.table, data)
            else:
                other = lancedb.connect(folder(self.table).parent).open_table("lives")
                writing = other.merge_insert("id").when_matched_update_all()
                writing.when_not_matched_insert_all().execute(data)
                other.close_lsm_writers()
        self.note(values.items())

    def merge(self) -> None:
        self.table.merge(**self.chance.choice([{}, DIVIDED]))

    def write_directly(self) -> None:
        dataset = native.dataset(self.table)
        match self.chance.randrange(5):
            case 0:
                builder = dataset.merge_insert("id").when_matched_update_all()
                builder.when_not_matched_insert_all().execute(self.stored(self.some()))
            case 1:
                dataset.delete(f"id = {self.chance.randrange(KEYS)}")
            case 2:
                added = self.stored({KEYS + self.number: 0})
                lance.write_dataset(added, self.table.uri, mode="append")
            case 3:
                # Lance refuses that after its updates of rows with stable ids.
                with suppress(OSError):
                    dataset.optimize.compact_files()
            case 4:
                dataset.update({"n": "-1", "text": "concat(cast(id as string), '=-1')"}, "id < 3")

    def change_columns(self) -> None:
        self.close()
        dataset = native.dataset(self.table)
        if len(dataset.schema) > len(SCHEMA):
            dataset.drop_columns([dataset.schema.names[-1]])
        else:
            dataset.add_columns(pa.field(f"c{self.number}", pa.int64()))

    def change_regions(self) -> None:
        self.close()
        spec = memwal.RegionSpec.bucket("id", self.chance.randint(1, 4))
        self.table = memwal.add_region_spec(self.table.uri, spec)

    def restore(self) -> None:
        self.close()
        versions = [v["version"] for v in native.dataset(self.table).versions()]
        options = self.chance.choice([{}, {"merge_again": True}, {"discard_pending": True}])
        # Another version of the columns, one from before MemWAL, or one whose generations are gone.
        with suppress(InvalidInputError):
            self.table.restore(self.chance.choice(versions[-6:]), **options)
            self.gave_up = self.number

    def maintain(self) -> None:
        table = self.table

        def collect() -> None:
            collect_all(table)
            self.collected = self.number

        self.chance.choice(
            [
                collect,
                lambda: table.compact(min_fragments=2),
                table.build_snapshot,
                table.build_indexes,
            ]
        )()

    def read(self) -> None:
        """Have one of the copies go on; the one that it was stays too."""
        last = self.copies[-1]
        self.copies.append(self.follow(self.chance.choice([*self.copies, *[last] * 4])))

    def apply(self, copy: Copy, grain: Grain, until: str | None = None) -> tuple[Copy, Versions]:
        """Return a copy after a feed, and what the logs told. Jobs may run before it is read."""
        feed = memwal.open(self.table.uri).changes(copy.token, until=until, grain=grain)
        step = self.number
        if self.chance.random() < 0.1:
            self.number += 1
            self.chance.choice([self.merge, self.maintain])()
        changes = feed.to_table()
        if grain == "net" or copy.token is None:
            assert pc.count_distinct(changes["id"]).as_py() == changes.num_rows
        found, logged = apply(changes, copy.rows)
        return Copy(step, feed.token, found), logged

    def follow(self, copy: Copy) -> Copy:
        """Return a copy after all changes, which must be what the table shows."""
        grain: Grain = self.chance.choice(["net", "log"])
        # One that stops on its way must come to the same.
        stop = self.chance.choice([copy, *(c for c in self.copies if c.step >= copy.step)])
        found, logged = copy, Versions()
        try:
            for until in (*{stop.token} - {None}, None):
                found, told = self.apply(found, grain, until)
                logged += told
            if grain == "log" and copy.token is not None:
                since = [version for step, version in self.acknowledged if step > copy.step]
                assert by_key(logged) == by_key(since)
        except TokenExpiredError:
            # Rows may have been deleted in generations that were collected since.
            assert copy.step < max(self.collected, self.gave_up)
            assert copy.step < self.gave_up or not (copy.is_tagged and stop.is_tagged)
            found = Copy(self.number, None, {})
        # A key that it read and lost since may have left no trace.
        if copy.is_ahead and not copy.is_tagged and copy.step < self.collected:
            found = Copy(self.number, None, {})
        if found.token is None:
            found, _ = self.apply(found, grain)
        shown = state(memwal.open(self.table.uri).fresh())
        assert found.rows == shown, f"from step {copy.step} to {self.number}"
        if copy.token is not None and self.chance.random() < 0.2:
            return copy._replace(rows=found.rows, is_ahead=True)
        if self.chance.random() < 0.5 and self.collected < found.step:
            version = FeedToken.parse(found.token or "").version
            native.dataset(self.table).tags.create(f"copy-{len(self.copies)}", version)
            return found._replace(is_tagged=True)
        return found


STEPS_OF_A_LIFE: list[Callable[[Life], None]] = [
    *[Life.upsert] * 8,
    *[Life.delete] * 4,
    *[Life.flush] * 6,
    *[Life.merge] * 4,
    *[Life.close] * 2,
    *[Life.put_by_lance] * 2,
    *[Life.write_directly] * 4,
    *[Life.maintain] * 6,
    Life.change_columns,
    Life.change_regions,
    Life.restore,
]


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(300))
def test_copies_are_the_table(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    specs = [memwal.RegionSpec.unsharded(), memwal.RegionSpec.bucket("id", 3)]
    table = memwal.create(
        str(tmp_path / "lives.lance"),
        SCHEMA,
        primary_key="id",
        region_spec=chance.choice(specs),
        stable_row_ids=chance.random() < 0.5,
        maintained_indexes=["id_idx"] if chance.random() < 0.5 else [],
    )
    life = Life(table, chance)
    for _ in range(STEPS):
        life.number += 1
        chance.choice(STEPS_OF_A_LIFE)(life)
        if chance.random() < 0.6:
            life.read()
    life.close()
    for copy in life.copies[:]:
        life.copies.append(life.follow(copy))


@dataclass
class ConsumerLife(Life):
    """A table, and a consumer that dies before its commit now and then."""

    consumer: Consumer | None = None
    copy: Rows = field(default_factory=dict)
    step: int = 0  # of the committed token

    def clean(self) -> None:
        """Collect all that is not held, versions of the base table too."""
        for _ in range(2):
            self.table.collect_garbage(
                dry_run=False,
                grace_seconds=0,
                retention_seconds=0,
                foreign_claim_seconds=0,
                version_retention_seconds=0,
            )

    def consume(self) -> None:
        if self.consumer is None or self.chance.random() < 0.2:
            self.consumer = memwal.open(self.table.uri).consumer("c")
        consumer = self.consumer
        if consumer.token is None:
            # The whole table does not tell what was deleted from it.
            self.copy = {}
        grain: Grain = self.chance.choice(["net", "log"])
        try:
            feed = consumer.read(grain=grain)
            told = versions(feed.to_table())
        except TokenExpiredError:
            assert self.step < self.gave_up
            consumer.reset()
            self.copy = {}
            feed = consumer.read()
            told = versions(feed.to_table())
        found = {key: n for key, n in (self.copy | dict(told)).items() if n is not None}
        assert found == state(memwal.open(self.table.uri).fresh())
        match self.chance.randrange(6):
            case 0:
                self.consumer = None
            case 1:
                self.consumer, self.copy = None, found
            case 2:
                step = self.number
                self.number += 1
                self.write_directly()
                self.clean()
                consumer.commit(feed.token)
                self.copy, self.step = found, step
            case _:
                consumer.commit(feed.token)
                self.copy, self.step = found, self.number


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(300))
def test_a_consumer_has_the_table(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    table = memwal.create(
        str(tmp_path / "lives.lance"),
        SCHEMA,
        primary_key="id",
        region_spec=memwal.RegionSpec.bucket("id", 2),
        stable_row_ids=chance.random() < 0.5,
    )
    life = ConsumerLife(table, chance)
    for _ in range(STEPS):
        life.number += 1
        step: Callable[[ConsumerLife], None]
        step = chance.choice([*STEPS_OF_A_LIFE, *[ConsumerLife.clean] * 4])
        step(life)
        if chance.random() < 0.6:
            life.consume()
    life.close()
    life.consume()
