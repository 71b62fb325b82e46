"""Copies that follow a table by its feed, through random lives of the table.

After each step one of the copies goes on from its token, and must then be what the table shows. At
the end, so must a copy from each token that was ever given.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import lance
import pyarrow.compute as pc
import pytest
from support.data.merging import DIVIDED
from support.data.tables import MakeTable, Rows, keys, rows, state
from support.oracles import native
from support.oracles.native import collect_all

import memwal
from memwal.errors import TokenExpiredError
from memwal.feed.token import FeedToken

KEYS = 12
STEPS = 30


def follow(
    table: memwal.Table, token: str | None, copy: Rows, *, until: str | None = None
) -> tuple[str, Rows]:
    """Apply what changed after a token to a copy; return the next token, and the copy."""
    feed = table.changes(token, until=until)
    changes = feed.to_table()
    is_delete = pc.equal(changes.column("_change"), "delete")
    deleted = set(changes.filter(is_delete).column("id").to_pylist())
    upserts = state(changes.filter(pc.invert(is_delete)))
    assert deleted.isdisjoint(upserts)
    assert len(deleted) + len(upserts) == changes.num_rows
    return feed.token, {key: n for key, n in (copy | upserts).items() if key not in deleted}


class Copy(NamedTuple):
    """What a consumer had after a step, and the token to go on with."""

    step: int
    token: str | None
    rows: Rows
    is_tagged: bool = False


@dataclass
class Life:
    """A table, its writer, and the copies that follow it."""

    table: memwal.Table
    chance: random.Random
    number: int = 0
    writer: memwal.Writer | None = None
    copies: list[Copy] = field(default_factory=lambda: [Copy(0, None, {})])
    collected: int = 0  # the last step that collected generations

    def some(self, most: int = 4) -> Rows:
        """Rows of random keys, whose number tells the step."""
        chosen = self.chance.sample(range(KEYS), self.chance.randint(1, most))
        return dict.fromkeys(chosen, self.number)

    def open(self) -> memwal.Writer:
        if self.writer is None:
            self.writer = self.table.writer()
        return self.writer

    def close(self) -> None:
        if self.writer is not None:
            self.chance.choice([self.writer.close, self.writer.abort])()
            self.writer = None

    def upsert(self) -> None:
        self.open().upsert(rows(self.some()))

    def delete(self) -> None:
        self.open().delete(keys(*self.some(2)))

    def flush(self) -> None:
        self.open().flush()

    def put_by_lance(self) -> None:
        self.close()
        with native.writer(self.table) as shard:
            native.put(shard, self.table, rows(self.some()))

    def merge(self) -> None:
        self.table.merge(**self.chance.choice([{}, DIVIDED]))

    def write_directly(self) -> None:
        dataset = native.dataset(self.table)
        match self.chance.randrange(4):
            case 0:
                builder = dataset.merge_insert("id").when_matched_update_all()
                builder.when_not_matched_insert_all().execute(rows(self.some()))
            case 1:
                dataset.delete(f"id = {self.chance.randrange(KEYS)}")
            case 2:
                self.number += KEYS
                lance.write_dataset(rows({self.number: 0}), self.table.uri, mode="append")
            case 3:
                # Lance refuses that after its updates of rows with stable ids.
                with suppress(OSError):
                    dataset.optimize.compact_files()

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

    def follow(self, copy: Copy) -> Copy:
        """Return a copy after all changes, which must be what the table shows."""
        table = memwal.open(self.table.uri)
        # One that stops on its way must come to the same.
        stop = self.chance.choice([copy, *self.copies[self.copies.index(copy) :]])
        try:
            token, found = copy.token, copy.rows
            if stop.token is not None:
                token, found = follow(table, token, found, until=stop.token)
            token, found = follow(table, token, found)
        except TokenExpiredError:
            # Rows may have been deleted in generations that were collected since.
            assert copy.step < self.collected
            assert not (copy.is_tagged and stop.is_tagged)
            token, found = follow(table, None, {})
        assert found == state(table.fresh()), f"from step {copy.step} to {self.number}"
        is_tagged = self.chance.random() < 0.5
        if is_tagged:
            version = FeedToken.parse(token).version
            native.dataset(table).tags.create(f"copy-{len(self.copies)}", version)
        return Copy(self.number, token, found, is_tagged)


STEPS_OF_A_LIFE: list[Callable[[Life], None]] = [
    *[Life.upsert] * 4,
    *[Life.delete] * 2,
    *[Life.flush] * 3,
    *[Life.merge] * 2,
    Life.close,
    Life.put_by_lance,
    *[Life.write_directly] * 2,
    *[Life.maintain] * 3,
]


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(300))
def test_copies_are_the_table(make_table: MakeTable, seed: int) -> None:
    chance = random.Random(seed)
    table = make_table(
        stable_row_ids=chance.random() < 0.5,
        maintained_indexes=["id_idx"] if chance.random() < 0.5 else [],
    )
    life = Life(table, chance)
    for life.number in range(1, STEPS):
        chance.choice(STEPS_OF_A_LIFE)(life)
        if chance.random() < 0.6:
            life.read()
    life.close()
    for copy in life.copies[:]:
        life.copies.append(life.follow(copy))
