"""The parts of a plan together are the feed, however it is divided."""

import pickle

import pyarrow as pa
import pytest
from support.data.tables import MakeTable, flush, flush_and_merge, keys, rows, state
from support.oracles.native import dataset

import memwal
from memwal.errors import InvalidInputError
from memwal.spark.source import changes_plan as plans
from memwal.spark.source.changes_load import ChangesLoad
from memwal.spark.source.changes_plan import ChangesPlan
from memwal.spark.source.changes_reader import read_changes
from memwal.spark.source.scan_plan import ReadOptions

ORDER = [("id", "ascending")]


def load_of(table: memwal.Table, **options: object) -> ChangesLoad:
    return ChangesLoad(table.location, ReadOptions(uri=table.uri, **options), "tests")


def plan_of(load: ChangesLoad, after: str, until: str) -> ChangesPlan:
    return load.plan(after, until, ["id", "n", "text"])


def read(load: ChangesLoad, plan: ChangesPlan, first: int = 0, last: int | None = None) -> pa.Table:
    """Read units as tasks do; no key is in two of them."""
    parts = plan.parts(load.options, first, last)
    sent = [pickle.loads(pickle.dumps(part)) for part in parts]
    batches = [batch for part in sent for batch in read_changes(load.location, part)]
    schema = load.schema(None, None)
    found = pa.Table.from_batches(batches, schema).sort_by(ORDER)
    assert len(found) == len(set(found.column("id").to_pylist()))
    return found


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def table(
    request: pytest.FixtureRequest, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> memwal.Table:
    monkeypatch.setattr(plans, "BLOCK_ROWS", 4)
    return make_table(stable_row_ids=request.param, buckets=3)


def test_tokens_in_the_wrong_order(table: memwal.Table) -> None:
    tokens = [table.changes().token]
    for _ in range(2):
        flush(table, {1: 1})
        tokens.append(table.changes().token)
    load = load_of(table, changes_until=tokens[1])
    assert read(load, plan_of(load, tokens[0], tokens[1])).num_rows == 1
    with pytest.raises(InvalidInputError):
        plan_of(load, tokens[2], tokens[1])


def test_newer_rows_in_the_log_of_what_is_merged_again(table: memwal.Table) -> None:
    """The generation is told again, but not in place of the row in the log."""
    flush_and_merge(table, {1: 0})
    before = table.base().version
    flush_and_merge(table, {1: 1, 9: 1})
    writer = table.writer()
    writer.upsert(rows({1: 2}))
    writer.abort()
    load = load_of(table, fresh=True, partitions=4)
    after = load.newest()
    table.restore(before, merge_again=True)
    until = load.newest()
    found = read(load, plan_of(load, after, until))
    assert state(found) == {1: 2, 9: 1}
    assert found.equals(table.changes(after, until=until).to_table().sort_by(ORDER))


@pytest.mark.few(2)
@pytest.mark.parametrize("fresh", [False, True])
def test_every_division(table: memwal.Table, fresh: bool) -> None:
    load = load_of(table, fresh=fresh, partitions=3)
    tokens = [""]
    for step in (
        lambda: flush(table, dict.fromkeys(range(30), 0)),
        table.merge,
        lambda: flush(table, dict.fromkeys(range(5, 12), 1), [13, 14]),
        lambda: dataset(table).delete("id = 20"),
        table.merge,
        lambda: table.compact(min_fragments=2),
        lambda: flush(table, {5: 2, 40: 2}, [6, 21]),
        lambda: table.upsert(rows({41: 3, 7: 3})),
        lambda: table.delete(keys(8)),
    ):
        step()
        tokens.append(load.newest())
    # Generations of three regions are three partitions.
    assert len(plan_of(load, tokens[0], tokens[1]).parts(load.options, 0, None)) == 3
    for at, after in enumerate(tokens[:-1]):
        for until in tokens[at + 1 :]:
            expected = table.changes(after or None, until=until).to_table().sort_by(ORDER)
            plan = plan_of(load, after, until)
            assert read(load, plan).equals(expected)
            found, first = [], 0
            while first < len(plan.units):
                last = plan.end(first, max_rows=5)
                batch = read(load, plan, first, last)
                assert len(batch) <= 5 or sum(u.rows > 0 for u in plan.units[first:last]) == 1
                found.append(batch)
                first = last
            assert pa.concat_tables(found).sort_by(ORDER).equals(expected)
