"""The consumer of a simulated table: memwal's own, with models of what it asks Lance for.

Its tags are objects of the store, as Lance's are. A feed is :class:`memwal.feed.changes.Changes`
told again: which rows of generations and logs are changes is memwal's own decision, and the base
table is a model here.
"""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
from simulation.base import Version
from simulation.jobs import Client, Opened
from simulation.lake import CONSUMER, DELETED, Rows, rows_key
from simulation.store import SimulatedStore
from simulation.world import World, identifier

from memwal.base_table.refs import TAGS_DIR
from memwal.errors import (
    ConsumerExpiredError,
    ConsumerFencedError,
    CorruptDataError,
    InternalError,
    InvalidInputError,
    MemWalError,
    ObjectExistsError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    TokenExpiredError,
)
from memwal.feed import consumer as feed_consumer
from memwal.feed.base_changes import NO_CHANGES, expired
from memwal.feed.change_rows import Reading
from memwal.feed.changes import NOW
from memwal.feed.consumer import Consumer
from memwal.feed.log_rows import check_logged
from memwal.feed.state import FeedState
from memwal.feed.token import FeedToken
from memwal.jobs.gc import consumers as gc_consumers

_DIGEST = bytes(16)


@contextmanager
def modelled(world: World) -> Iterator[None]:
    """Let consumers find the models, the clock of a world, and the same identifiers each time."""
    clock = SimpleNamespace(now=lambda zone: world.time())
    identifiers = partial(identifier, Random(0))
    with (
        mock.patch.multiple(
            feed_consumer, Changes=Feed, base_of=_base_of, datetime=clock, uuid4=identifiers
        ),
        mock.patch.object(gc_consumers, "open_base", _newest),
    ):
        yield


@dataclass(frozen=True)
class _Location:
    """Address of the table for a consumer, and the process that it is in."""

    client: Client

    @property
    def store(self) -> SimulatedStore:
        return self.client.store

    def __str__(self) -> str:
        return self.store.uri


def _newest(location: Any) -> Any:
    return SimpleNamespace(version=location.base.open().number)


def _base_of(location: _Location, token: FeedToken) -> Any:
    """The version of a token, as :func:`memwal.feed.state.base_of`, and Lance's call for tags."""
    base = location.client.lake.base
    newest = location.client.base.open()
    if token.version in base.gone:
        raise expired(location, "its version was cleaned up")  # type: ignore[arg-type]

    def create(name: str, version: int) -> None:
        if version in base.gone:
            raise ObjectNotFoundError(f"version {version} is gone")
        try:
            location.store.create(f"{TAGS_DIR}/{name}.json", b"{}")
        except ObjectExistsError as error:
            raise ValueError("already exists") from error

    class Dataset:
        tags = SimpleNamespace(create=create)

        @property
        def latest_version(self) -> int:
            return location.client.base.open().number

    assert token.version <= newest.number
    return SimpleNamespace(version=token.version, location=location, dataset=Dataset())


class Feed:
    """The keys that changed after a token."""

    def __init__(self, location: _Location, *, after: str | None, **_: Any) -> None:
        self._location, self._client = location, location.client
        self.since = self._client.world.now
        self._opened = self._client.open_fresh()
        self._until = self._state(self._opened).token
        self._after = None
        if after is not None:
            self._after = self._until if after == NOW else FeedToken.parse(after)

    @property
    def token(self) -> str:
        """Text to go on with."""
        return str(self._until)

    @property
    def version(self) -> int:
        """Version of the base table that the token names."""
        return self._until.version

    def apply(self, copy: Rows) -> Rows:
        """Return a copy of the table after the changes.

        Raises
        ------
        TokenExpiredError, CorruptDataError
            What the token needs is gone.
        """
        while True:
            try:
                return self._apply(dict(copy))
            except ObjectNotFoundError:
                # A generation was merged and collected since: the base table tells of it now.
                self._opened = self._client.open_fresh()

    def check_logs(self) -> None:
        """Look for all entries of the logs since the token, which the grain "log" reads."""
        if self._after is not None:
            for log in self._state(self._opened).logged_since(self._after, self._until):
                check_logged(self._location, log)  # type: ignore[arg-type]

    def _state(self, opened: Opened) -> FeedState:
        base = SimpleNamespace(
            version=opened.version.number, digest=_DIGEST, location=self._location
        )
        snapshot = SimpleNamespace(manifests=opened.manifests)
        plan: Any = SimpleNamespace(base=base, snapshot=snapshot)
        return FeedState(plan, opened.logs)

    def _apply(self, copy: Rows) -> Rows:
        version, _, logs = self._opened
        form = self._client.lake.format
        rows, changed = dict(version.rows), set[int]()
        earlier = None if self._after is None else self._earlier(self._after.version)
        sources = []
        for region, generation, stored in self._generations(earlier):
            if generation > version.merged.get(region, 0):
                sources.append((SimpleNamespace(region_id=region, generation=generation), stored))
            else:
                # Of a key that was added and deleted since, the base table has no trace.
                changed |= stored.keys()
        for region, log in logs.items():
            for run in log.rows:
                stored = pa.Table.from_batches(run.snapshot.view.batches)
                source = SimpleNamespace(region_id=region, generation=run.generation)
                sources.append((source, stored))
        for source, stored in sources:
            source.is_flushed = isinstance(stored, dict)
        since: Any = None
        if self._after is not None:
            seen = self._state(self._opened).seen(self._after)
            since = SimpleNamespace(after=self._after, seen=seen, base=NO_CHANGES)
        given: Any = SimpleNamespace(generations=[source for source, _ in sources])
        reading = Reading(given, logs, since, pa.schema([]), None)
        for at, (_, stored) in enumerate(sources):
            first = reading._first_changed(at)
            if isinstance(stored, dict):
                own, later = stored, stored if first is not None else {}
            else:
                own = form.shown(stored.to_batches())
                later = {} if first is None else form.shown(stored.slice(first).to_batches())
            form.join(rows, own)
            changed |= later.keys()
        if earlier is None:
            return {key: value for key, value in rows.items() if value != DELETED}
        changed |= {key for key, _ in {*earlier.rows} ^ {*version.rows}}
        copy |= {key: rows.get(key, DELETED) for key in changed}
        return {key: value for key, value in copy.items() if value != DELETED}

    def _earlier(self, number: int) -> Version:
        base = self._client.lake.base
        if number in base.gone:
            raise self._expired(f"version {number} was cleaned up")
        return base.versions[number - 1]

    def _generations(self, earlier: Version | None) -> Iterator[tuple[Any, int, Rows]]:
        """Read all generations that an earlier version lacks, or those that are not merged."""
        merged = self._opened.version.merged if earlier is None else earlier.merged
        for region, manifest in self._opened.manifests.items():
            first = merged.get(region, 0) + 1
            named = [f for f in manifest.flushed if f.generation >= first]
            oldest = min((f.generation for f in named), default=manifest.current_generation)
            if earlier is not None and oldest > first:
                raise self._expired(f"generation {first} of {region.int} was collected")
            for flushed in named:
                stored = self._client.store.get(rows_key(region, flushed.path))
                yield region, flushed.generation, pickle.loads(stored)

    def _expired(self, reason: str) -> TokenExpiredError:
        return expired(self._location, reason)  # type: ignore[arg-type]


def consume(client: Client) -> None:
    """Bring the copy of the table up to now, as the one process that may, or find another there."""
    dice, consumer = client.world.dice, client.consumer
    try:
        if consumer is None or dice.random() < 0.1:
            consumer = client.consumer = _open(client)
        if dice.random() < 0.02:
            drop(client)
        elif dice.random() < 0.02:
            _begin_anew(client, consumer)
        else:
            _read(client, consumer)
    except ConsumerFencedError as error:
        client.world.tell(f"is fenced: {error}"[:100])
        client.consumer = None
    except ConsumerExpiredError:
        client.world.tell("finds its consumer expired")
        assert client.consumer is not None
        _begin_anew(client, client.consumer)
    except InternalError as error:
        raise AssertionError(f"a consumer fails: {error}") from error


def drop(client: Client) -> None:
    """Read a last time, and end the consumer."""
    consumer = client.consumer = _open(client)
    try:
        _read(client, consumer)
    except ConsumerExpiredError:
        _begin_anew(client, consumer)
        _read(client, consumer)
    if client.lake.copy.store(consumer.epoch, None, {}):
        consumer.drop()
    client.consumer = None


def _open(client: Client) -> Consumer:
    location: Any = _Location(client)
    consumer = Consumer(location, CONSUMER, start=None)
    copy = client.lake.copy
    # From now on, no process before this one changes the copy.
    if not copy.store(consumer.epoch, copy.token, copy.rows):
        raise ConsumerFencedError("another process has the copy")
    client.world.tell(f"opens its consumer with epoch {consumer.epoch}")
    return consumer


def _begin_anew(client: Client, consumer: Consumer) -> None:
    if client.lake.copy.store(consumer.epoch, None, {}):
        consumer.reset()


def _read(client: Client, consumer: Consumer) -> None:
    world, copy = client.world, client.lake.copy
    try:
        if copy.token != consumer.token:
            # A process died, or heard nothing, between the two below.
            if copy.token is None:
                consumer.reset()
            else:
                consumer.commit(copy.token)
        before = dict(copy.rows)
        feed: Any = consumer.read()
        if consumer.token is None:
            before = {}
        world.sleep(world.dice.choice([*[0.0] * 6, 1.0, 900.0]) * world.dice.random())
        rows = feed.apply(before)
        if world.dice.random() < 0.3:
            feed.check_logs()
    except ConsumerExpiredError:
        raise
    except (TokenExpiredError, InvalidInputError, CorruptDataError) as error:
        _check_loud(consumer, error)
        return
    client.lake.check(rows, "a consumer", since=feed.since)
    is_stored = copy.store(consumer.epoch, feed.token, rows)
    consumer.commit(feed.token)
    assert is_stored, "a process commits although another one opened the consumer before"


def _check_loud(consumer: Consumer, error: Exception) -> None:
    """Raise the error by which the consumer learns that it lost its hold, or AssertionError."""
    try:
        consumer.read()
    except (ConsumerFencedError, ConsumerExpiredError):
        raise
    except (StoreUnavailableError, OutcomeUnknownError):
        return
    except MemWalError:
        pass
    raise AssertionError(f"what a consumer needs is gone: {error}") from error
