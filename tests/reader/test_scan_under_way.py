"""Scans that are under way when what they read is merged, collected or cleaned up."""

import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data.sampled import every
from support.data.tables import SCHEMA, MakeTable, base_state, folder, keys, numbered, rows, state
from support.oracles.read_sources import collect_sources

import memwal
from memwal.errors import ObjectNotFoundError
from memwal.reader.scan import Scan
from memwal.reader.sources import narrow_columns

_ROWS = 30_000


@pytest.fixture(autouse=True)
def streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read generations as streams, as those with wide columns."""
    monkeypatch.setattr(narrow_columns, "is_narrow", lambda _type: False)


def merge_and_collect(table: memwal.Table) -> None:
    """Merge all, then delete every generation, as the collector does much later."""
    table.merge()
    for path in folder(table).glob("_mem_wal/*/*_gen_*"):
        shutil.rmtree(path)


def begun(reader: pa.RecordBatchReader) -> tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]:
    """The first batch, and the others to come."""
    batches = iter(reader)
    return next(batches), batches


def joined(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches([first, *others])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> memwal.Table:
    """What ``filled`` is a copy of."""
    uri = str(tmp_path_factory.mktemp("prepared") / "table")
    spec = memwal.RegionSpec.unsharded()
    return fill(memwal.create(uri, SCHEMA, primary_key=["id"], region_spec=spec))


@pytest.fixture
def filled(prepared: memwal.Table, tmp_path: Path) -> memwal.Table:
    """A base table, and two generations of many batches, with updates and deletes."""
    path = tmp_path / "filled"
    # Files of a table never change.
    shutil.copytree(folder(prepared), path, copy_function=os.link)
    return memwal.open(str(path))


def fill(table: memwal.Table) -> memwal.Table:
    with table.writer() as writer:
        writer.upsert(numbered(0, _ROWS))
        writer.flush()
        table.merge()
        writer.upsert(numbered(_ROWS // 2, _ROWS, n=1))
        writer.flush()
        writer.upsert(numbered(_ROWS, _ROWS, n=2))
        writer.delete(keys(1, _ROWS // 2 + 1, _ROWS + 1))
    return table


@cache
def expected() -> dict[int, int]:
    first = dict.fromkeys(range(_ROWS // 2), 0)
    middle = dict.fromkeys(range(_ROWS // 2, _ROWS), 1)
    last = dict.fromkeys(range(_ROWS, 2 * _ROWS), 2)
    gone = {1, _ROWS // 2 + 1, _ROWS + 1}
    return {key: n for key, n in (first | middle | last).items() if key not in gone}


class TestCollectedGenerations:
    def test_leave_no_row_out_and_double_none_of_many_regions(self, make_table: MakeTable) -> None:
        table = fill(make_table(buckets=3))
        first, others = begun(table.scan().to_reader())
        merge_and_collect(table)
        assert state(joined(first, others)) == expected()

    @pytest.mark.parametrize("given", every(2, [1, 2, 4, 5]))
    def test_wherever_the_scan_is(self, filled: memwal.Table, given: int) -> None:
        batches = iter(filled.scan().to_reader())
        seen = [next(batches) for _ in range(given)]
        merge_and_collect(filled)
        assert state(pa.Table.from_batches([*seen, *batches])) == expected()

    @pytest.mark.few(2)
    @pytest.mark.parametrize("predicate", ["n >= 1", "n > 0 and id < 50000", "id > 20000"])
    def test_with_a_filter(self, filled: memwal.Table, predicate: str) -> None:
        scan = filled.scan(filter=predicate, columns=["id", "text"])
        whole = scan.to_table().sort_by("id")
        first, others = begun(scan.to_reader())
        merge_and_collect(filled)
        assert joined(first, others).sort_by("id").equals(whole)

    @pytest.mark.few(2)
    @pytest.mark.parametrize(("offset", "limit"), [(0, 25_000), (9_000, 20_000), (35_000, None)])
    def test_with_limit_and_offset(
        self, filled: memwal.Table, offset: int, limit: int | None
    ) -> None:
        first, others = begun(filled.scan(offset=offset, limit=limit).to_reader())
        merge_and_collect(filled)
        found = state(joined(first, others))
        assert len(found) == (limit or len(expected()) - offset)
        assert found.items() <= expected().items()

    def test_with_places_of_rows(self, filled: memwal.Table) -> None:
        reader = filled.scan(
            columns=["id"], with_generation=True, with_row_address=True
        ).to_reader()
        sources = collect_sources(filled.location)
        old = sources.base.dataset.to_table(columns=["id"], with_row_address=True)
        first, others = begun(reader)
        merge_and_collect(filled)
        found = joined(first, others)
        assert sorted(found.column("id").to_pylist()) == sorted(expected())
        assert set(first.column("_gen").to_pylist()) == {2}
        new = filled.base().dataset.to_table(columns=["id"], with_row_address=True)
        places = [
            dict(zip(t.column("_rowaddr").to_pylist(), t.column("id").to_pylist(), strict=True))
            for t in (old, new)
        ]
        for row in found.slice(first.num_rows).to_pylist():
            if row["_gen"] == 0:
                assert row["id"] in [place.get(row["_rowaddr"]) for place in places]
        in_base = found.filter(pa.compute.equal(found.column("_gen"), 0)).column("id")
        assert {_ROWS, _ROWS + 10_000} <= set(in_base.to_pylist())

    def test_show_what_was_written_since_once(self, filled: memwal.Table) -> None:
        """Rows that come from the state of then may be newer, changed or deleted."""
        first, others = begun(filled.scan().to_reader())
        taken = state(pa.Table.from_batches([first]))
        with filled.writer() as writer:
            writer.upsert(numbered(_ROWS, _ROWS, n=3))
            writer.delete(keys(*range(_ROWS, 2 * _ROWS, 3)))
            writer.upsert(rows({5_000_000: 5}))
        merge_and_collect(filled)
        filled.upsert(numbered(_ROWS, _ROWS // 2, n=4))
        found = state(joined(first, others))
        now = state(filled)
        for key, n in expected().items():
            allowed = {n} if key in taken else {n, now.get(key)}
            assert found.get(key) in allowed, key
        assert 5_000_000 not in found
        assert 4 in found.values()

    def test_again_and_again(self, make_table: MakeTable) -> None:
        """What is read in the place of a collected generation is collected as well."""
        table = fill(make_table(buckets=2))
        batches = iter(table.scan().to_reader())
        seen = [next(batches)]
        model = dict(expected())
        with table.writer() as writer:
            for n in range(3, 6):
                for key in sorted(model)[-_ROWS // 2 :]:
                    model[key] = n
                newest = rows({key: n for key, n in model.items() if key >= _ROWS * 3 // 2})
                writer.upsert(newest)
                writer.flush()
                merge_and_collect(table)
                seen.append(next(batches))
        found = state(pa.Table.from_batches([*seen, *batches]))
        assert found.keys() == expected().keys()

    def test_for_ever_end_the_scan(self, filled: memwal.Table) -> None:
        sources = collect_sources(filled.location)
        batches = iter(Scan(lambda: sources).to_reader())
        next(batches)
        merge_and_collect(filled)
        with pytest.raises(ObjectNotFoundError):
            list(batches)

    def test_of_a_table_whose_rows_keep_their_ids(self, tmp_path: Any) -> None:
        uri = str(tmp_path / "stable")
        lance.write_dataset(
            numbered(0, _ROWS), uri, enable_stable_row_ids=True, max_rows_per_file=10_000
        )
        table = memwal.enable(uri, region_spec="unsharded", primary_key=["id"])
        table.upsert(numbered(_ROWS // 6, _ROWS, n=1))
        wanted = dict.fromkeys(range(_ROWS // 6), 0) | dict.fromkeys(
            range(_ROWS // 6, _ROWS // 6 + _ROWS), 1
        )
        assert state(table) == wanted
        for predicate in (None, "n = 1"):
            table.upsert(numbered(_ROWS // 6, _ROWS, n=1))
            first, others = begun(table.scan(filter=predicate).to_reader())
            merge_and_collect(table)
            assert state(joined(first, others)) == {
                key: n for key, n in wanted.items() if predicate is None or n == 1
            }

    @pytest.mark.parametrize("given", [1, 3])
    def test_of_a_table_without_keys_end_the_scan(self, tmp_path: Path, given: int) -> None:
        """No key tells which rows it has given already: none is given twice, or left out."""
        table = memwal.create(tmp_path / "t", SCHEMA, primary_key=None)
        table.append(numbered(0, _ROWS))
        table.merge()
        with table.writer() as writer:
            writer.append(numbered(0, _ROWS))
            writer.flush()
            writer.append(numbered(0, _ROWS))
        batches = iter(table.scan().to_reader())
        seen = [next(batches) for _ in range(given)]
        merge_and_collect(table)
        with pytest.raises(ObjectNotFoundError):
            seen += batches
        assert table.scan().to_table().num_rows == table.count_rows() == 3 * _ROWS

    def test_of_a_table_without_keys_before_its_first_batch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = memwal.create(tmp_path / "t", SCHEMA, primary_key=None)
        for _ in range(2):
            table.append(numbered(0, 100))
        sources = collect_sources(table.location)
        opened = iter([sources, sources])
        merge_and_collect(table)
        scan = Scan(lambda: next(opened, None) or collect_sources(table.location))
        assert scan.to_table().num_rows == 200

    def test_while_rows_are_counted(
        self, filled: memwal.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sources = collect_sources(filled.location)
        merged: list[bool] = []
        plain = lance.LanceScanner.to_batches

        def collected_before(self: Any) -> Iterator[pa.RecordBatch]:
            for batch in plain(self):
                yield batch
                if not merged:
                    merged.append(True)
                    merge_and_collect(filled)

        collect: list[Any] = [sources]
        scan = Scan(
            lambda: collect.pop() if collect else collect_sources(filled.location),
            filter="n >= 1",
        )
        monkeypatch.setattr(lance.LanceScanner, "to_batches", collected_before)
        assert scan.count_rows() == sum(n >= 1 for n in expected().values())
        assert merged

    def test_that_were_deleted_before_they_were_merged_are_a_failure(
        self, filled: memwal.Table
    ) -> None:
        first, others = begun(filled.scan().to_reader())
        for path in folder(filled).glob("_mem_wal/*/*_gen_*"):
            shutil.rmtree(path)
        with pytest.raises(ObjectNotFoundError):
            joined(first, others)


class TestVersionsThatAreCleanedUp:
    def test_are_named_with_what_to_do(self, filled: memwal.Table) -> None:
        first, others = begun(filled.scan().to_reader())
        filled.merge()
        clean_up(filled)
        with pytest.raises(ObjectNotFoundError, match="older_than"):
            joined(first, others)
        assert state(filled) == expected()

    def test_before_the_first_row_are_left_for_the_newest(self, filled: memwal.Table) -> None:
        filled.merge()
        stale = collect_sources(filled.location)
        clean_up(filled)
        with pytest.raises(ObjectNotFoundError):
            Scan(lambda: stale).to_table()
        collect: list[Any] = [stale]
        scan = Scan(lambda: collect.pop() if collect else collect_sources(filled.location))
        assert state(scan.to_table()) == expected() == base_state(filled)


def clean_up(table: memwal.Table) -> None:
    """Write all rows anew and delete every file of before."""
    dataset = table.base().dataset
    dataset.optimize.compact_files(target_rows_per_fragment=10_000)
    lance.dataset(table.uri).cleanup_old_versions(
        timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
    )
