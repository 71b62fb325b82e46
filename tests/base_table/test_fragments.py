"""Sizes of fragments, and which of them a compaction rewrites together."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import memwal
from memwal.base_table.fragments import (
    FragmentLimits,
    Rewrite,
    batch_rows,
    fragment_sizes,
    plan_rewrites,
    small_runs,
    sparse_fragment_ids,
)
from memwal.base_table.snapshot import BaseTable

KIB = 1 << 10


def write(path: Path, fragments: Sequence[tuple[int, int]]) -> memwal.Table:
    """Write a plain table of fragments with so many rows of so many random bytes."""
    schema = pa.schema([("id", pa.int64()), ("value", pa.binary())])
    start = 0
    for rows, width in fragments:
        values = [os.urandom(width) for _ in range(rows)]
        table = pa.table([range(start, start + rows), values], schema=schema)
        lance.write_dataset(table, str(path), mode="append" if start else "create")
        start += rows
    return memwal.open(str(path))


def planned(base: BaseTable, limits: FragmentLimits) -> list[Rewrite]:
    sizes = fragment_sizes(base)
    chosen = small_runs(base, sizes, limits).ids | sparse_fragment_ids(sizes, limits)
    return list(plan_rewrites(base, sizes, limits, chosen))


def parts(base: BaseTable, limits: FragmentLimits) -> list[list[int]]:
    return [sorted(rewrite.fragments) for rewrite in planned(base, limits)]


def test_sizes_are_those_of_the_manifest(tmp_path: Path) -> None:
    table = write(tmp_path / "t", [(3, KIB), (5, 10 * KIB)])
    table.base().dataset.delete("id = 4")
    sizes = fragment_sizes(table.base())
    assert sizes.ids.tolist() == [0, 1]
    assert sizes.rows.tolist() == [3, 5]
    assert sizes.deleted.tolist() == [0, 1]
    stored = [
        sum((tmp_path / "t" / "data" / file.path).stat().st_size for file in part.data_files())
        for part in table.base().dataset.get_fragments()
    ]
    assert sizes.stored.tolist() == stored
    assert sizes.live_bytes.tolist() == [stored[0], stored[1] * 4 // 5]
    assert not sizes.unrecorded.any()


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        # By bytes: ten rows of 10 KiB reach 100 KiB.
        ([(3, 10 * KIB)] * 3, [[0, 1, 2]]),
        ([(6, 10 * KIB)] * 4, [[0, 1], [2, 3]]),
        # What remains and reaches no target goes along with the last.
        ([(6, 10 * KIB)] * 5, [[0, 1], [2, 3, 4]]),
        # A full fragment is left alone, and separates its neighbours.
        ([(3, 10 * KIB)] * 2 + [(11, 10 * KIB)] + [(3, 10 * KIB)] * 2, [[0, 1], [3, 4]]),
        ([(3, 10 * KIB), (11, 10 * KIB), (3, 10 * KIB)], []),
        # By rows, whichever comes first.
        ([(60, 10)] * 4, [[0, 1], [2, 3]]),
        ([(100, 10), (3, 10)], []),
        ([(2, 10), *[(60, 10)] * 3, (9, 10 * KIB), (3, 10 * KIB)], [[0, 1, 2], [3, 4, 5]]),
    ],
)
def test_neighbours_are_joined_up_to_a_target(
    tmp_path: Path, fragments: list[tuple[int, int]], expected: list[list[int]]
) -> None:
    base = write(tmp_path / "t", fragments).base()
    assert parts(base, FragmentLimits(100, 100 * KIB)) == expected


def test_neighbours_that_different_indexes_cover_are_not_joined(tmp_path: Path) -> None:
    table = write(tmp_path / "t", [(3, KIB)] * 3)
    table.base().dataset.create_scalar_index("id", "BTREE")
    write_more = table.base().dataset.to_table(limit=3)
    for _ in range(2):
        lance.write_dataset(write_more, table.uri, mode="append")
    assert parts(table.base(), FragmentLimits(100, 100 * KIB)) == [[0, 1, 2], [3, 4]]


def test_limits_for_the_compactions_of_other_clients_do_not_count(tmp_path: Path) -> None:
    table = write(tmp_path / "t", [(3, KIB)] * 4)
    names = ("max_source_fragments", "max_source_rows", "max_source_bytes")
    limits = dict.fromkeys((f"lance.compaction.{name}" for name in names), "1")
    table.base().dataset.update_config({**limits, "lance.compaction.target_rows_per_fragment": "2"})
    assert parts(table.base(), FragmentLimits(100, 100 * KIB)) == [[0, 1, 2, 3]]


def test_a_sparse_fragment_is_rewritten_whatever_its_size(tmp_path: Path) -> None:
    table = write(tmp_path / "t", [(20, 10 * KIB), (20, 10 * KIB), (2, 10 * KIB)])
    limits = FragmentLimits(100, 100 * KIB, deleted_percent=10)
    table.base().dataset.delete("id in (0, 1, 20)")
    assert parts(table.base(), limits) == [[0]]
    table.base().dataset.delete("id = 21")
    assert parts(table.base(), limits) == [[0], [1]]
    # What would be small is joined.
    table.base().dataset.delete("id < 12")
    assert parts(table.base(), limits) == [[0, 1]]


def test_a_huge_fragment_is_divided(tmp_path: Path) -> None:
    table = write(tmp_path / "t", [(60, 10 * KIB)])
    table.base().dataset.delete("id < 12")
    (rewrite,) = planned(table.base(), FragmentLimits(100, 100 * KIB, deleted_percent=10))
    result = rewrite.task.execute(table.base().dataset)
    assert [part["physical_rows"] for part in json.loads(result.json())["new_fragments"]] == [
        12
    ] * 4


def test_batches_are_as_small_as_the_widest_rows_need(tmp_path: Path) -> None:
    def batch_rows(fragments: list[tuple[int, int]], name: str) -> int:
        base = write(tmp_path / name, fragments).base()
        (rewrite,) = planned(base, FragmentLimits(1 << 20, 1 << 28))
        return int(json.loads(rewrite.task.json())["options"]["batch_size"])

    assert batch_rows([(100, 10), (100, 10)], "narrow") == 8_192
    assert 3 <= batch_rows([(100, 10), (2, 1 << 20)], "mixed") <= 4
    assert batch_rows([(1, 5 << 20), (1, 10)], "wide") == 1


def test_a_scan_reads_as_many_rows_as_its_columns_allow(tmp_path: Path) -> None:
    wide = [{"note": "short", "image": os.urandom(1 << 20)} for _ in range(4)]
    data = pa.table({"id": range(4), "wide": wide, "n": [1, 2, 3, 4]})
    dataset = lance.write_dataset(data, str(tmp_path / "t"))
    assert batch_rows(dataset, ["id", "n"], most=1_000) == 1_000
    assert 3 <= batch_rows(dataset, ["id", "wide"], most=1_000) <= 4
