"""A table to which everything happens, and every kind of query of it against a model.

The model is a dictionary of whole rows; what queries have to find is asked of one plain table with
these rows.
"""

import datetime
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from support.data.random_predicates import RandomPredicates
from support.data.tables import collect_now
from support.oracles import native
from support.oracles.answers import Merged, Row, Rows, bag, check_fused, check_hits, numbers_of
from support.stores.faulty_store import Killed

import memwal
from memwal.jobs.merge import commit, merge_insert
from memwal.region.router import Router
from memwal.search.text.query import BooleanQuery, MatchQuery, PhraseQuery, TextQuery

DIMENSION = 8
KEYS = 60
WORDS = ("apple", "maple", "zebra", "quick", "brown", "fox", "foxes", "running", "the", "café")
TENANTS = ("a", "ab", "abc", "b", "é")
NAMES = ("", "'", "a`b", "é", "0")
SCHEMA = pa.schema(
    [
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("ms")),
        pa.field("n", pa.int64()),
        pa.field("flag", pa.bool_()),
        pa.field("v", pa.list_(pa.float32(), DIMENSION)),
        pa.field("t", pa.string()),
    ]
)
# Of a filter: literals that rows have, and some that none has.
VALUES = {
    "tenant": [f"'{name}'" for name in (*TENANTS, "", "c")],
    "id": [str(number) for number in (-1, 0, 7, 10, 19, 20, 33, 59, 99)],
    "day": [f"date '{day}'" for day in ("2025-11-15", "2026-01-01", "2026-02-10", "2027-09-01")],
    "at": [
        f"timestamp '{time}'"
        for time in ("2025-11-15 00:00:00", "2026-03-01 12:00:00", "2027-09-01 01:02:03")
    ],
    "n": [str(number) for number in (0, 3, 5, 100)],
}
EVERYTHING = {"nprobes": 100, "refine_factor": 50}
"""Options with which an approximate search is exact here."""


@dataclass(frozen=True)
class Division:
    """A way to divide the table.

    Attributes
    ----------
    key : tuple of str
        Primary key.
    beside : tuple of str
        Columns outside of the key that the spec calls immutable; a delete names them too.
    """

    spec: memwal.RegionSpec
    key: tuple[str, ...] = ("id",)
    beside: tuple[str, ...] = ()


DIVISIONS = {
    "bucket": Division(memwal.RegionSpec.bucket("id", 3)),
    "tens": Division(memwal.RegionSpec.truncate("id", 20)),
    "identity": Division(memwal.RegionSpec.identity("tenant"), ("tenant", "id")),
    "prefix": Division(memwal.RegionSpec.truncate("tenant", 1), ("tenant", "id")),
    "several": Division(memwal.RegionSpec.multi_bucket(["tenant", "id"], 3), ("tenant", "id")),
    "calendar": Division(
        memwal.RegionSpec.combine(
            memwal.RegionSpec.year("day", immutable=True),
            memwal.RegionSpec.month("day", immutable=True),
        ),
        beside=("day",),
    ),
    "hour": Division(memwal.RegionSpec.hour("at", immutable=True), beside=("at",)),
    "odd texts": Division(memwal.RegionSpec.unsharded(), ("name",)),
}

STEPS = {
    "upsert": 26,
    "delete": 12,
    "flush": 14,
    "merge": 5,
    "half_merge": 6,
    "native_merge": 3,
    "build_indexes": 4,
    "collect": 5,
    "snapshot": 3,
    "reclaim": 4,
}


def half_merge(table: memwal.Table, *, step: str, done: int) -> None:
    """Merge by a merger that dies.

    Parameters
    ----------
    step : {"_upsert", "_delete", "raise_marks"}
        What it is about to do when it dies. The first two are of a merge of one generation a
        commit; what there is to delete is done first. The last one is of a divided merge, whose
        rows are committed.
    done : int
        How often it does so before.
    """
    divided = step == "raise_marks"
    module = commit if divided else merge_insert
    options = (
        {"divide_bytes": 0, "commit_bytes": 2_000, "max_tasks": 2}
        if divided
        else {"commit_bytes": 1}
    )
    real, left = getattr(module, step), done

    def until_death(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return real(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(module, step, until_death)
        table.merge(**options)


class Life:
    """A table, its writer, and what both must show.

    Parameters
    ----------
    folder : Path
        Where the table is made.
    division : Division
    seed : str
    """

    def __init__(self, folder: Path, division: Division, seed: str) -> None:
        self.random = Random(seed)
        self.division = division
        self.predicates = RandomPredicates(self.random, SCHEMA, VALUES)
        self.acknowledged: Rows = {}
        self.uri = str(folder / "life.lance")
        dataset = lance.write_dataset(self._rows(range(0, KEYS, 2)), self.uri, schema=SCHEMA)
        dataset.create_index("v", "IVF_PQ", num_partitions=2, num_sub_vectors=4, num_bits=4)
        lance.dataset(self.uri).create_scalar_index("t", "INVERTED", with_position=True)
        lance.dataset(self.uri).create_scalar_index("n", "BTREE")
        self.table = memwal.enable(
            self.uri,
            primary_key=list(division.key),
            region_spec=division.spec,
            maintained_indexes=["v_idx", "t_idx"],
        )
        self.flushed = dict(self.acknowledged)
        self.stale: Rows | None = None
        self.writer = self.table.writer()
        self.native = lancedb.connect(str(folder), read_consistency_interval=timedelta(0))
        self.pruned = 0
        self.done: list[str] = []

    def play(self, steps: int) -> None:
        """Take steps at random and ask everything after each; in the end all is merged."""
        try:
            for _ in range(steps):
                (name,) = self.random.choices(list(STEPS), list(STEPS.values()))
                self.step(name)
                self.check()
            for name in ("flush", "merge"):
                self.step(name)
            self.check()
            assert lance.dataset(self.uri).count_rows() == len(self.acknowledged)
        finally:
            self.writer.abort()

    def step(self, name: str) -> None:
        """Take one step."""
        self.done.append(name)
        getattr(self, f"_{name}")()

    def _upsert(self) -> None:
        self.writer.upsert(self._rows(self._some(14)))

    def _delete(self) -> None:
        numbers = self._some(8)
        named = [*self.division.key, *self.division.beside]
        rows = [_fixed(number) for number in numbers]
        self.writer.delete(pa.Table.from_pylist(rows, schema=SCHEMA).select(named))
        for number in numbers:
            self.acknowledged.pop(number, None)

    def _flush(self) -> None:
        self.writer.flush()
        self.flushed = dict(self.acknowledged)

    def _merge(self) -> None:
        if self.random.random() < 0.5:
            result = self.table.merge(divide_bytes=0, commit_bytes=2_000, max_tasks=2)
        else:
            result = self.table.merge(commit_bytes=self.random.choice([1, 1 << 30]))
        assert result.warnings == ()
        if self.stale is not None:
            self.stale = dict(self.flushed)

    def _half_merge(self) -> None:
        """A merger dies: before its first commit, between two, or between the passes of one."""
        half_merge(
            self.table,
            step=self.random.choice(["_upsert", "_delete", "raise_marks"]),
            done=self.random.randrange(3),
        )
        self.stale = None

    def _native_merge(self) -> None:
        """Lance's own calls merge the oldest generation of each region."""
        native.merge(self.table, generations=1)
        self.stale = None

    def _build_indexes(self) -> None:
        self.table.build_indexes()

    def _collect(self) -> None:
        result = collect_now(self.table, foreign_claim_seconds=0)
        assert result.warnings == ()

    def _snapshot(self) -> None:
        self.table.build_snapshot()
        self.stale = dict(self.flushed)

    def _reclaim(self) -> None:
        """The writer dies, and another one takes its log over."""
        self.writer.abort()
        self.writer = self.table.writer()
        _, spec = self.table.region_spec()
        everywhere = pa.Table.from_pylist([_fixed(number) for number in range(KEYS)], schema=SCHEMA)
        parts = Router(spec, SCHEMA).route(everywhere.combine_chunks())
        used = set(self.table.region_ids())
        self.writer.claim([region for region, _ in parts if region.region_id in used])

    def check(self) -> None:
        """Every kind of query, of all that was acknowledged and of all that was flushed."""
        merged = Merged(self.acknowledged, SCHEMA)
        self._check(self.writer, merged)
        if self.flushed != self.acknowledged:
            merged = Merged(self.flushed, SCHEMA)
        self._check(self.table, merged)
        self._check_native(merged)
        if self.stale is not None:
            found = self.table.at_most(timedelta(days=1)).scan(columns=["id", "n"]).to_table()
            wanted = {number: row["n"] for number, row in self.stale.items()}
            assert numbers_of(found) == wanted

    def check_past(self, version: int | str, rows: Rows) -> None:
        """Every kind of query of a version of the base table, or a tag."""
        self._check(self.table.at(version), Merged(rows, SCHEMA))

    def _check(self, reads: Any, merged: Merged) -> None:
        self._check_scans(reads, merged)
        self._check_lookup(reads, merged)
        self._check_searches(reads, merged)

    def _check_scans(self, reads: Any, merged: Merged) -> None:
        assert _ordered(reads.scan().to_table()) == merged.in_order()
        assert reads.scan().count_rows() == len(merged.rows)
        for filter in (self.predicates.draw(), self._narrow(), self._narrow()):
            passing = merged.passing(filter)
            columns = self.random.sample(SCHEMA.names, self.random.randint(1, len(SCHEMA)))
            found = reads.scan(columns=columns, filter=filter).to_table()
            assert found.column_names == columns, filter
            assert bag(found.to_pylist()) == bag(
                [{name: merged.rows[number][name] for name in columns} for number in passing]
            ), filter
            assert reads.scan(filter=filter).count_rows() == len(passing), filter
            limit, offset = self.random.randrange(8), self.random.randrange(4)
            scan = reads.scan(columns=["id"], filter=filter, limit=limit, offset=offset)
            some = scan.to_table()["id"].to_pylist()
            assert len(some) == len(set(some)) == max(0, min(limit, len(passing) - offset))
            assert set(some) <= passing
            self.pruned += len(reads.explain(filter=filter).pruned)

    def _check_lookup(self, reads: Any, merged: Merged) -> None:
        asked = self.random.sample(range(-2, KEYS), 20)
        keys = pa.Table.from_pylist([_fixed(number) for number in asked], schema=SCHEMA)
        found = reads.lookup(keys.select(list(self.division.key))).to_table()
        wanted = [merged.rows[number] for number in asked if number in merged.rows]
        assert found.to_pylist() == pa.Table.from_pylist(wanted, schema=SCHEMA).to_pylist()

    def _check_searches(self, reads: Any, merged: Merged) -> None:
        filter = self.random.choice([None, self.predicates.draw()])
        k = self.random.choice([1, 5, 200])
        vector, query = self._vector(), self._query()
        distances, scores = merged.distances(vector, filter), merged.scores(query, filter)
        options = {"k": k, "filter": filter, "columns": ["id", "n"]}

        found = reads.search(vector, **options, **EVERYTHING).to_table()
        nearest = sorted(distances.values())[:k]
        np.testing.assert_allclose(found["_distance"].to_numpy(), nearest, rtol=1e-4, atol=1e-6)
        check_hits(found, "_distance", distances, merged)

        found = reads.search_text(query, **options).to_table()
        best = sorted(scores.values(), reverse=True)[:k]
        np.testing.assert_allclose(found["_score"].to_numpy(), best, atol=1e-3)
        check_hits(found, "_score", scores, merged)

        weight = self.random.choice([0.0, 0.3, 0.5, 1.0])
        found = reads.search_hybrid(
            vector, query, **options, weight=weight, candidates=500, **EVERYTHING
        ).to_table()
        check_fused(found, distances, scores, weight=weight, k=k)

    def _check_native(self, merged: Merged) -> None:
        """LanceDB's own reader shows the same rows where it can answer."""
        theirs = self.native.open_table("life")
        filter = self.predicates.draw()
        passing = merged.passing(filter)
        found = theirs.search().where(filter).limit(500).to_arrow()
        assert bag(found.to_pylist()) == bag([merged.rows[number] for number in passing]), filter

        # A filter that goes through an index of its own costs LanceDB rows that were merged since.
        vector = self._vector()
        near = theirs.search(vector.tolist(), vector_column_name="v").nprobes(100)
        found = near.limit(500).to_arrow()
        assert sorted(found["id"].to_pylist()) == sorted(merged.distances(vector, None))

        word = self.random.choice(WORDS)
        texts = theirs.search(word, query_type="fts", fts_columns="t").limit(500).to_arrow()
        assert sorted(texts["id"].to_pylist()) == sorted(merged.scores(MatchQuery(word, "t"), None))

    def _rows(self, numbers: Iterable[int]) -> pa.Table:
        """New rows of some keys, which from now on must be there."""
        rows = [self._row(number) for number in numbers]
        self.acknowledged |= {row["id"]: row for row in rows}
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    def _row(self, number: int) -> Row:
        words = [self.random.choice(WORDS) for _ in range(self.random.randint(1, 9))]
        return {
            **_fixed(number),
            "n": self.random.choice([None, *range(7)]),
            "flag": self.random.choice([None, True, False]),
            "v": self._vector().tolist() if self.random.random() < 0.9 else None,
            "t": " ".join(words) if self.random.random() < 0.9 else None,
        }

    def _vector(self) -> np.ndarray:
        drawn = [self.random.gauss(0, 1) for _ in range(DIMENSION)]
        return np.array(drawn, dtype=np.float32)

    def _query(self) -> TextQuery:
        one, two = self.random.sample(WORDS, 2)
        kind = self.random.randrange(4)
        if kind == 0:
            return PhraseQuery(f"{one} {two}", "t")
        if kind == 1:
            return BooleanQuery(
                [("must", MatchQuery(one, "t")), ("must_not", MatchQuery(two, "t"))]
            )
        operator = self.random.choice(["or", "and"])
        return MatchQuery(f"{one} {two}", "t", operator=operator)

    def _narrow(self) -> str:
        """A predicate that few rows pass, so that most regions can be left out."""
        number = self.random.choice(VALUES["id"])
        fixed = _fixed(int(number))
        tenant, day, hour = fixed["tenant"], fixed["day"], fixed["at"].hour
        first = self.random.choice(
            [
                f"id = {number} and tenant = '{tenant}'",
                f"id in ({number}, 7) and tenant in ('a', 'b')",
                f"id between {number} and {number} + 3",
                f"tenant = '{tenant}'",
                f"tenant like '{tenant}_%'",
                f"day = date '{day}' and at = timestamp '{fixed['at']}'",
                f"day between date '2025-12-01' and date '{day}'",
                f"cast(at as date) < date '{day}' and at >= timestamp '2025-11-18 00:00:00'",
                f"date_part('year', day) = 2026 and date_part('hour', at) < {hour}",
            ]
        )
        return f"{first} and {self.predicates.draw()}"

    def _some(self, most: int) -> list[int]:
        return self.random.sample(range(KEYS), self.random.randint(1, most))


def _fixed(number: int) -> Row:
    """What never changes of the row of a key."""
    start = datetime.datetime(2025, 11, 15)
    return {
        "tenant": TENANTS[number % len(TENANTS)],
        "id": number,
        "name": NAMES[number % len(NAMES)] + str(number // len(NAMES)),
        "day": start.date() + timedelta(days=11 * number),
        "at": start + timedelta(hours=7 * number, seconds=number),
    }


def _ordered(found: pa.Table) -> list[Row]:
    return found.sort_by("id").to_pylist()
