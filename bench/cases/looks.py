"""Looks at idle tables in an object store: requests and processor time, and what many cost."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from common.measure import Line, Rival, Target, constant, processor_seconds
from common.s3 import Gateway, gateway_before, running_emulator
from scale import MONTH, PRICES

import memwal
from memwal.catalog import Catalog, Policy
from memwal.catalog.records import ManagedTable
from memwal.fleet import watch as watch_module
from memwal.fleet.polls import TablePolls
from memwal.fleet.watch import FULL_READ_SECONDS, TableWatch
from memwal.jobs import backlog, unflushed
from memwal.region.manifest_store import forget_manifests
from memwal.util.clock import boot_seconds

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
REGIONS = 64
TABLES = 300
MANY = 10_000
_JITTER = 0.95  # Pauses are drawn between 0.9 and 1 times what the policy says.


@dataclass(frozen=True, slots=True)
class _Cost:
    requests: Counter[str]
    seconds: float  # of a processor

    @property
    def dollars(self) -> float:
        return sum(PRICES[kind] * number for kind, number in self.requests.items())

    def __str__(self) -> str:
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(self.requests.items()))
        return f"{kinds}, {1e3 * self.seconds:.3g} ms"


class _Idle:
    """An idle table in a catalog twice: by a proxy that counts, and without its processor time."""

    def __init__(self, folder: Path, endpoints: tuple[str, str], policy: Policy, **options: str):
        self.ahead = 0.0  # of the clock, in seconds
        self.catalog = Catalog(f"sqlite:///{folder / 'catalog.db'}")
        self.catalog.migrate()
        self._folder = folder
        self._options = options
        self._policy = policy
        self.table = _make(options)
        self._collected = self.table.collect_garbage()
        tables = [self.register(f"t{n}", endpoint) for n, endpoint in enumerate(endpoints)]
        self._watches = [(table, TableWatch()) for table in tables]
        watch_module.boot_seconds = lambda: boot_seconds() + self.ahead
        # Each full read lists the logs, as one a day does.
        unflushed.LOG_CHECK_SECONDS = backlog.LOG_CHECK_SECONDS = 0.0

    def register(self, name: str, endpoint: str) -> ManagedTable:
        file = self._folder / f"{name}.json"
        options = {**self._options, "aws_endpoint": endpoint}
        file.write_text(json.dumps(options))
        managed = self.catalog.register(
            name, uri=self.table.uri, policy=self._policy, storage_options_ref=str(file)
        )
        with self.catalog.record_run(name, "gc") as run:
            run.finish(self._collected)
        return managed

    def cost(self, proxy: Gateway, *, pause: float, samples: int, fresh: bool = False) -> _Cost:
        """Return what a look costs so long after a look with a round, or after a full read."""
        (counted, counting), (table, watch) = self._watches
        counting.poll(self.catalog, counted)
        watch.poll(self.catalog, table)
        seconds = []
        for number in range(samples + 1):
            polled = counting if number == 0 else watch
            last = min(pause, self._policy.idle_poll_seconds * _JITTER)
            self.ahead += pause - last
            if pause > last and not fresh:
                polled.poll(self.catalog, table if number else counted)
            self.ahead += last
            if fresh:
                forget_manifests(self.table.location.store)
            proxy.taken()
            started = time.process_time()
            reading = polled.poll(self.catalog, table if number else counted)
            elapsed = time.process_time() - started
            if reading.is_fresh != fresh:
                raise RuntimeError(f"the status was {'not ' * fresh}read after {pause:g} s")
            if number:
                seconds.append(elapsed)
            else:
                requests = Counter(proxy.methods())
        return _Cost(requests, float(np.median(seconds)))

    def first_looks(self, endpoint: str, count: int) -> float:
        """Return the processor time of the first looks of a process that starts."""
        names = {f"idle{number:03}" for number in range(count)}
        watch = TableWatch()
        for name in names:
            managed = self.register(name, endpoint)
        status = watch.poll(self.catalog, managed).survey.status
        for name in names:
            self.catalog.record_backlog(name, status, probe=watch.probe())
        return processor_seconds(lambda: asyncio.run(_poll_all(self.catalog, names)))


def looks(folder: Path, policy: Policy) -> Iterator[Line]:
    """Look at tables by the pauses of a policy by which nothing becomes due."""
    place = folder / "looks"
    place.mkdir()
    with running_emulator(place) as emulator, gateway_before(emulator.endpoint) as proxy:
        uri = f"s3://{emulator.create_bucket()}/table"
        options = {**emulator.storage_options, "uri": uri}
        idle = _Idle(place, (proxy.endpoint, emulator.endpoint), policy, **options)
        with closing(idle.catalog):
            full = idle.cost(proxy, pause=FULL_READ_SECONDS, samples=5, fresh=True)
            around = idle.cost(proxy, pause=policy.untraced_poll_seconds, samples=20)
            look = idle.cost(proxy, pause=1, samples=100)
            first = idle.first_looks(emulator.endpoint, TABLES)
    name = f"a look at an idle table of {REGIONS} regions"
    yield _limited(f"requests to S3 of {name}", look.requests.total(), 2, "requests", str(look))
    yield _limited(f"processor time of {name}", 1e3 * look.seconds, 3, "ms", str(look))
    rounds = MONTH / policy.untraced_poll_seconds
    months = {
        "looks": (look, MONTH / (policy.idle_poll_seconds * _JITTER) - rounds),
        "looks with a round": (around, rounds),
        "full reads": (full, MONTH / FULL_READ_SECONDS),
    }
    dollars = {what: MANY * each.dollars * times for what, (each, times) in months.items()}
    cores = {what: MANY * each.seconds * times / MONTH for what, (each, times) in months.items()}
    prices = ", ".join(f"a million {k} ${1e6 * PRICES[k]:g}" for k in ("HEAD", "GET", "LIST"))
    costs = "; ".join(f"{what} ${dollars[what]:,.0f} ({months[what][0]})" for what in months)
    model = f"{MANY:,} idle tables of {REGIONS} regions, by the default policy (model)"
    total = sum(dollars.values())
    yield _limited(f"a month of requests to S3 of {model}", total, 500, "$", f"{costs}; {prices}")
    shares = ", ".join(f"{what} {share:.2g}" for what, share in cores.items())
    yield _limited(f"processors of {model}", sum(cores.values()), 1, "cores", shares)
    yield Line(
        name="airflow looks",
        what=f"processor time of the first looks at {TABLES} idle tables after a start",
        ours=constant(first),
        other=constant(TABLES * full.seconds),
        unit="s",
        against="a read of each status",
        rival=Rival.OURS,
        note=f"{REGIONS} regions, in an object store",
    )


def _limited(what: str, ours: float, limit: float, unit: str, note: str) -> Line:
    return Line(
        name="airflow looks",
        what=what,
        ours=constant(float(ours)),
        other=constant(float(limit)),
        unit=unit,
        against="a limit",
        rival=Rival.LIMIT,
        target=Target(1),
        note=note,
    )


def _make(options: dict[str, str]) -> memwal.Table:
    table = memwal.create(
        options.pop("uri"),
        SCHEMA,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", REGIONS),
        maintained_indexes=["id_idx"],
        storage_options=options,
    )
    with table.writer() as writer:
        count = 32 * REGIONS
        writer.upsert(pa.table({"id": np.arange(count), "v": ["x"] * count}, schema=SCHEMA))
        writer.flush()
    table.merge()
    table.build_indexes()
    table.build_snapshot()
    return table


async def _poll_all(catalog: Catalog, names: set[str]) -> None:
    async def options(table: ManagedTable) -> None:
        return None

    polls = TablePolls(
        catalog,
        storage_options=options,
        select=lambda table: table.name in names,
        refresh_seconds=3_600,
    )
    try:
        await polls.poll_all()
        while polls.running:
            await asyncio.wait(list(polls.running.values()))
    finally:
        polls.close()
