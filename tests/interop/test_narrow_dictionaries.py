"""Columns stored as dictionaries with narrow indices, with more values than these can number."""

from contextlib import suppress
from pathlib import Path

import lance
import pandas as pd
import pyarrow as pa
import pytest
from support.data.dictionaries import (
    DICTIONARIES,
    NARROW,
    categories,
    dictionary_table,
    values,
    wanted,
)
from support.data.merging import DIVIDED, Merge
from support.oracles import native

import memwal
from memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    RegionFencedError,
    StoreUnavailableError,
)
from memwal.jobs.merge import rewrite

STEP = 100
"""Categories of each write: two writes have more than 8 bits can number."""


@pytest.fixture
def table(tmp_path: Path) -> memwal.Table:
    return dictionary_table(tmp_path / "table.lance")


def check_reads(table: memwal.Table, stop: int, *, fresh: bool = False) -> None:
    """Every kind of read shows the rows up to ``stop``."""
    reader = table.fresh() if fresh else table
    assert values(reader.scan().to_table().combine_chunks()) == wanted(stop)
    assert values(reader.lookup(range(stop)).to_table()) == wanted(stop)
    filtered = reader.scan(filter="kind <> 'kind 1' and id >= 0").to_table()
    assert filtered.num_rows == sum(
        row["kind"] not in (None, "kind 1") for row in wanted(stop).values()
    )


def check_files(table: memwal.Table, stop: int) -> None:
    """Lance decodes every file with the types that the table has, which stay as they were."""
    dataset = lance.dataset(table.uri)
    assert dataset.schema.types == DICTIONARIES.types
    assert values(dataset.to_table()) == wanted(stop)


def upsert(table: memwal.Table, start: int, stop: int) -> None:
    """Upsert rows in batches that Lance could store, one generation for all."""
    with table.writer() as writer:
        for first in range(start, stop, STEP):
            writer.upsert(categories(first, first + STEP))


def test_every_step_keeps_all_rows(table: memwal.Table, merge: Merge) -> None:
    with table.writer() as writer:
        for start in range(0, 3 * STEP, STEP):
            writer.upsert(categories(start, start + STEP))
        check_reads(table, 3 * STEP, fresh=True)
    check_reads(table, 3 * STEP)
    merge(table)
    check_files(table, 3 * STEP)
    upsert(table, 2 * STEP, 5 * STEP)
    merge(table)
    assert table.compact(min_fragments=2).warnings
    check_files(table, 5 * STEP)
    native.collect_all(table)
    check_reads(table, 5 * STEP)
    check_files(table, 5 * STEP)
    assert table.verify().clean


def test_a_batch_with_more_values_than_the_indices_can_number(table: memwal.Table) -> None:
    rows = pa.table(
        {
            "id": range(300),
            "kind": [f"kind {n}" for n in range(300)],
            "list": [[f"kind {n}"] for n in range(300)],
            "struct": [{"kind": f"kind {n}"} for n in range(300)],
            "number": range(300),
        }
    )
    with table.writer() as writer:
        writer.upsert(rows)
        writer.upsert(rows.select(["id", "number"]).slice(100), partial=True)
        assert writer.scan().to_table().num_rows == 300
    table.merge()
    found = values(lance.dataset(table.uri).to_table())
    assert [found[n]["kind"] for n in range(300)] == rows.column("kind").to_pylist()


def test_a_row_with_too_many_values_is_refused(table: memwal.Table) -> None:
    row = {"id": 1, "kind": "a", "list": [str(n) for n in range(200)], "struct": None, "number": 1}
    with table.writer() as writer, pytest.raises(InvalidInputError):
        writer.upsert(row)
    assert table.count_rows() == 0


def test_few_values_stay_in_one_file_and_are_compacted(table: memwal.Table) -> None:
    for _ in range(3):
        upsert(table, 0, STEP)
        table.merge()
        table.upsert(categories(100, 120))
        table.merge()
    assert len(lance.dataset(table.uri).get_fragments()) > 1
    result = table.compact(min_fragments=2)
    assert (result.warnings, len(lance.dataset(table.uri).get_fragments())) == ((), 1)
    check_files(table, 120)


def test_lances_writer_and_ours_take_over_from_each_other(table: memwal.Table) -> None:
    shard = native.writer(table)
    shard.put(categories(0, STEP).cast(lance.dataset(table.uri).schema))
    writer = table.writer()
    writer.upsert(categories(STEP, 2 * STEP))
    check_reads(table, 2 * STEP, fresh=True)
    native.writer(table).close()
    with suppress(RegionFencedError):
        writer.close()
    check_reads(table, 2 * STEP)
    table.merge()
    check_files(table, 2 * STEP)


def test_what_others_wrote_so_that_lance_cannot_decode_it_is_read(table: memwal.Table) -> None:
    schema = lance.dataset(table.uri).schema
    parts = [categories(start, start + STEP).cast(schema) for start in (0, STEP)]
    batches = [batch for part in parts for batch in part.to_batches()]
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    lance.write_dataset(reader, table.uri, mode="append")
    with native.writer(table) as shard:
        for start in (2 * STEP, 3 * STEP):
            shard.put(categories(start, start + STEP).cast(schema))
    check_reads(table, 4 * STEP)
    table.merge()
    native.collect_all(table)
    check_reads(table, 4 * STEP)


@pytest.mark.few(1)
@pytest.mark.parametrize("merge_options", [{}, DIVIDED], ids=["small", "divided"])
def test_files_of_an_old_version(tmp_path: Path, merge_options: dict[str, int]) -> None:
    """They can be read as dictionaries only."""
    table = dictionary_table(tmp_path / "table.lance", version="2.0")
    for start in range(0, 3 * STEP, STEP):
        upsert(table, start, start + STEP)
    table.merge(**merge_options)
    check_files(table, 3 * STEP)
    assert values(table.scan().to_table()) == wanted(3 * STEP)


def test_a_merge_that_would_write_what_nobody_can_decode_commits_nothing(
    table: memwal.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    upsert(table, 0, 3 * STEP)
    before = table.version

    def together(rows: pa.RecordBatchReader, schema: pa.Schema) -> list[pa.RecordBatchReader]:
        parts = [part for start in range(0, 3 * STEP, STEP) for part in dictionaries(start)]
        rows.read_all()
        return [pa.RecordBatchReader.from_batches(schema, parts)]

    def dictionaries(start: int) -> list[pa.RecordBatch]:
        stored = table.base().stored.schema
        return categories(start, start + STEP).cast(stored).to_batches()

    monkeypatch.setattr(rewrite, "divide_by_values", together)
    with pytest.raises(CorruptDataError) as raised:
        table.merge()
    assert not isinstance(raised.value, StoreUnavailableError)
    assert table.version == before
    check_reads(table, 3 * STEP)
    monkeypatch.undo()
    table.merge()
    check_files(table, 3 * STEP)


def test_new_tables_have_plain_values(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": range(3), "kind": pd.Categorical(["a", "b", "a"])})
    table = memwal.create(tmp_path / "frame.lance", frame, primary_key="id")
    assert table.schema.field("kind").type in (pa.string(), pa.large_string())
    for number in range(4):
        kinds = pd.Categorical([f"kind {number} {n}" for n in range(STEP)])
        table.upsert(pd.DataFrame({"id": range(number * STEP, (number + 1) * STEP), "kind": kinds}))
        table.merge()
    table.compact(min_fragments=2)
    native.collect_all(table)
    assert len(lance.dataset(table.uri).to_table(filter="id >= 0")) == 4 * STEP

    nested = pa.schema(
        [
            ("id", pa.int64()),
            ("map", pa.map_(pa.string(), NARROW)),
            ("list", pa.large_list(pa.struct([("kind", NARROW)]))),
            ("wide", pa.dictionary(pa.int32(), pa.string())),
        ]
    )
    table = memwal.create(tmp_path / "nested.lance", nested, primary_key="id")
    assert not table.base().has_narrow_dictionaries
    assert table.schema.field("wide").type == nested.field("wide").type
