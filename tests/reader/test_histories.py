"""Random histories of a table against a dictionary.

Whatever was flushed, merged or half merged, collected or claimed again: a read through the writer
equals all that was acknowledged, and a read of the table equals all that was flushed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.data.sampled import drawn, every
from support.faults.half_done import half_merge
from support.stores.faulty_store import FaultyStores

import memwal
from memwal.writer.region_writer.options import WriterOptions

MERGE_STEPS = ("_upsert", "_delete", "record_progress")
"""Of mergers that die before one of them."""

Key = Any
Model = dict[Key, int]


@dataclass(frozen=True)
class Kind:
    """A kind of table: how its keys look and how it is divided."""

    name: str
    schema: pa.Schema
    primary_key: tuple[str, ...]
    spec: memwal.RegionSpec
    to_key: Callable[[int], tuple[Any, ...]]
    indexes: tuple[str, ...] = ()

    def table(self, uri: str) -> memwal.Table:
        return memwal.create(
            uri,
            self.schema,
            primary_key=list(self.primary_key),
            region_spec=self.spec,
            maintained_indexes=list(self.indexes),
        )

    def rows(self, values: dict[int, int]) -> pa.Table:
        columns: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        for number, value in values.items():
            for name, part in zip(self.primary_key, self.to_key(number), strict=True):
                columns[name].append(part)
            columns["n"].append(value)
            columns["text"].append(f"{number % 3}-{value}")
        return pa.table(columns, schema=self.schema)

    def keys(self, numbers: list[int]) -> pa.Table:
        return self.rows(dict.fromkeys(numbers, 0)).select(list(self.primary_key))


def _schema(*keys: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema(
        [
            pa.field("text", pa.string()),
            *(pa.field(name, kind, nullable=False) for name, kind in keys),
            pa.field("n", pa.int64()),
        ]
    )


KINDS = (
    Kind(
        "integer",
        _schema(("id", pa.int64())),
        ("id",),
        memwal.RegionSpec.bucket("id", 3),
        lambda number: (number,),
        ("id_idx",),
    ),
    Kind(
        "text",
        _schema(("id", pa.string())),
        ("id",),
        memwal.RegionSpec.unsharded(),
        lambda number: (["", "'", "a`b", "é", "0"][number % 5] + str(number // 5),),
    ),
    Kind(
        "composite",
        _schema(("a", pa.int32()), ("b", pa.string())),
        ("a", "b"),
        memwal.RegionSpec.bucket("a", 2),
        lambda number: (number % 3, "x" * (number // 3)),
    ),
)


@dataclass
class Run:
    """A table, its writer, and what both must show."""

    kind: Kind
    table: memwal.Table
    options: WriterOptions
    strong: Model = field(default_factory=dict)
    flushed: Model = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writer = self.table.writer(options=self.options)

    def step(self, name: str, numbers: list[int], value: int) -> None:
        getattr(self, name)(numbers, value)

    def upsert(self, numbers: list[int], value: int) -> None:
        values = {number: value + number for number in numbers}
        self.writer.upsert(self.kind.rows(values))
        self.strong |= values

    def delete(self, numbers: list[int], value: int) -> None:
        self.writer.delete(self.kind.keys(numbers))
        for number in numbers:
            self.strong.pop(number, None)

    def flush(self, numbers: list[int], value: int) -> None:
        self.writer.flush()
        self.flushed = dict(self.strong)

    def merge(self, numbers: list[int], value: int) -> None:
        # Sometimes one generation a commit.
        result = self.table.merge(commit_bytes=1 if value % 2 else 1 << 30)
        assert result.warnings == ()

    def half_merge(self, numbers: list[int], value: int) -> None:
        half_merge(self.table, step=MERGE_STEPS[value % 3], done=len(numbers) % 3)

    def collect(self, numbers: list[int], value: int) -> None:
        self.table.build_indexes()
        result = self.table.collect_garbage(dry_run=False, grace_seconds=0, retention_seconds=0)
        assert result.warnings == ()

    def snapshot(self, numbers: list[int], value: int) -> None:
        self.table.build_snapshot()

    def reclaim(self, numbers: list[int], value: int) -> None:
        self.writer.abort()
        self.writer = self.table.writer(options=self.options)
        self.writer.claim()

    def check(self, value: int, *, of_table: bool = True) -> None:
        self._check(self.writer, self.strong, value)
        if of_table:
            self._check(self.table, self.flushed, value)

    def _check(self, reads: Any, model: Model, value: int) -> None:
        kind = self.kind
        expected = _sorted(kind.rows(model), kind)
        found = reads.scan().to_table()
        assert found.schema.names == kind.schema.names
        assert _sorted(found, kind) == expected
        assert reads.scan().count_rows() == len(model)

        wanted = f"n >= {value}"
        some = {number: n for number, n in model.items() if n >= value}
        found = reads.scan(columns=list(kind.primary_key), filter=wanted).to_table()
        assert found.column_names == list(kind.primary_key)
        assert sorted(map(str, found.to_pylist())) == sorted(
            map(str, kind.keys(list(some)).to_pylist())
        )
        assert reads.scan(filter=wanted).count_rows() == len(some)
        limit = value % 4
        limited = reads.scan(columns=["n", "text"], filter=wanted, limit=limit).to_table()
        assert limited.column_names == ["n", "text"]
        assert limited.num_rows == min(limit, len(some))

        asked = list(range(0, 24, 1 + value % 3))
        found = reads.lookup(kind.keys(asked)).to_table()
        assert found.schema.names == kind.schema.names
        present = {number: model[number] for number in asked if number in model}
        assert found.to_pylist() == kind.rows(present).to_pylist()


def _sorted(table: pa.Table, kind: Kind) -> list[dict[str, Any]]:
    return table.sort_by([(name, "ascending") for name in kind.primary_key]).to_pylist()


STEPS = ("upsert", "delete", "flush", "merge", "half_merge", "collect", "snapshot", "reclaim")
UNFLUSHED = ("upsert", "delete")
"""Steps that the table shows nothing of, as the step behind them sees."""
WEIGHTS = (30, 14, 16, 8, 8, 8, 3, 6)


def play(run: Run, history: list[tuple[str, list[int], int]]) -> None:
    """Take the steps, and compare after each."""
    try:
        for name, numbers, value in history:
            run.step(name, numbers, value)
            run.check(value, of_table=name not in UNFLUSHED)
        run.step("flush", [], 0)
        run.step("merge", [], 0)
        run.check(0)
        base = run.table.base().dataset
        assert base.count_rows() == len(run.strong), "the base table has rows twice or too many"
    finally:
        run.writer.abort()


def drawn_history(kind: Kind, seed: int, count: int) -> list[tuple[str, list[int], int]]:
    """Steps that a seed decides."""
    dice = random.Random(f"{kind.name}-{seed}")
    return [
        (
            dice.choices(STEPS, WEIGHTS)[0],
            dice.sample(range(24), dice.randint(1, 8)),
            dice.randint(0, 100),
        )
        for _ in range(count)
    ]


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", every(2, KINDS, lambda kind: kind.name))
@pytest.mark.parametrize("seed", every(2, [1, 2]))
def test_a_long_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, seed: int
) -> None:
    """One seed, many steps; a MemTable is sealed only when the history says so."""
    FaultyStores(monkeypatch, durable=False)
    table = kind.table(str(tmp_path / "table"))
    history = drawn_history(kind, seed, 24)
    history.insert(len(history) // 2, ("collect", [], 0))
    play(Run(kind, table, WriterOptions()), history)


@settings(
    max_examples=6,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
@given(
    kind=st.sampled_from(KINDS),
    history=st.lists(
        st.tuples(
            st.sampled_from(STEPS),
            st.lists(st.integers(0, 23), min_size=1, max_size=6, unique=True),
            st.integers(0, 100),
        ),
        max_size=12,
    ),
)
def test_short_histories(
    kind: Kind,
    history: list[tuple[str, list[int], int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found, and made as small as possible, by hypothesis."""
    FaultyStores(monkeypatch, durable=False)
    with TemporaryDirectory() as folder:
        table = kind.table(str(Path(folder, "table")))
        play(Run(kind, table, WriterOptions()), history)


@pytest.mark.parametrize(
    ("kind", "seed"),
    drawn(
        1,
        itertools.product(KINDS, range(10, 16)),
        seed="histories",
        ids=lambda value: getattr(value, "name", str(value)),
    ),
)
def test_a_very_long_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, seed: int
) -> None:
    FaultyStores(monkeypatch, durable=False)
    table = kind.table(str(tmp_path / "table"))
    play(Run(kind, table, WriterOptions()), drawn_history(kind, seed, 120))
