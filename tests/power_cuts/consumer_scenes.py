"""A consumer is made, commits, begins again and is dropped, until the power goes."""

from pathlib import Path

import lance
from power_cuts.scenes import Known, Scene, Stage
from power_cuts.table_scenes import open_safe_version
from support.data.tables import SCHEMA, collect_now, keys, rows, state
from support.faults.power_loss import Crash
from support.oracles.native import collect_all

import memwal
from memwal.feed.consumer_state import Phase, read_state
from memwal.feed.token import FeedToken

COPIES: tuple[dict[int, int | None], ...] = (
    {1: 1, 2: 2},
    {1: 1, 2: 2, 3: 3, 4: 4},
    {2: 2, 3: 3, 4: 4},
)
"""The rows of the table at the token of each step: creation, commit, reset."""
DROPPED = len(COPIES)


def create(stage: Stage) -> None:
    table = memwal.create(stage.path, SCHEMA, primary_key=["id"])
    table.upsert(rows(COPIES[0]))
    table.merge()


def consume(stage: Stage) -> None:
    table = memwal.open(stage.path)
    consumer = table.consumer("c", start="now")
    stage.done()
    table.upsert(rows({3: 3}))
    table.merge()
    # Lance syncs no commit of its own; a token must not name a version that a crash takes away.
    lance.write_dataset(rows({4: 4}), str(stage.path), mode="append")
    consumer.commit(consumer.read().token)
    stage.done()
    table.delete(keys(1))
    table.merge()
    collect(table)
    consumer.reset("now")
    stage.done()
    consumer.drop()
    stage.done()


def collect(table: memwal.Table) -> None:
    """Collect all that is not held, old versions too."""
    collect_all(table)
    collect_now(table, version_retention_seconds=0)


def goes_on(path: Path, crash: Crash[Known]) -> None:
    """The consumer has the token of the last step or of the one under way, and what follows."""
    table = open_safe_version(path)
    collect(table)
    stored = read_state(table.location.store, "c")
    steps = {crash.known.count - 1, crash.known.count}
    copy: dict[int, int | None] = {}
    if stored is None:
        assert -1 in steps, "a consumer is lost"
    elif stored.phase is Phase.DROPPED:
        assert DROPPED in steps
    else:
        copy = state(table.at(FeedToken.parse(stored.token or "").version))
        assert copy in [COPIES[step] for step in steps if 0 <= step < DROPPED]
    consumer = table.consumer("c")
    table.upsert(rows({9: 9}))
    feed = consumer.read()
    for row in feed.to_table().to_pylist():
        copy[row["id"]] = row["n"]
        if row["_change"] == "delete":
            del copy[row["id"]]
    assert copy == state(table)
    consumer.commit(feed.token)
    collect(table)
    assert len(table.base().dataset.tags.list()) == 1


SCENES = {"consumer": Scene(consume, goes_on, create)}
