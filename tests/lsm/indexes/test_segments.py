"""Segments of indexes: how many there are, how they are joined, and that models never change."""

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.indexed import (
    DIMENSION,
    KINDS,
    SCHEMA,
    VECTOR,
    answers,
    create_index,
    indexed_copy,
    indexed_table,
    merge_rows,
    models,
    recall,
    rows,
    segments,
)
from support.data.sampled import every
from support.data.some_kinds import some
from support.data.tables import REGION

import memwal
from memwal.jobs.index.job import build_indexes
from memwal.jobs.options import IndexOptions
from memwal.lsm.indexes.catchup import (
    IndexCoverage,
    caught_up,
    describe_index,
    group_fragments,
    index_coverage,
    segments_to_join,
)

sizes = st.lists(st.integers(0, 1_000_000), min_size=1, max_size=20)


def coverage(*segments: int, fresh: int = 0) -> IndexCoverage:
    return IndexCoverage(segments, ((99, fresh),) if fresh else ())


@pytest.mark.parametrize(
    ("found", "most", "joined"),
    [
        (coverage(1000, fresh=1), 2, 0),
        (coverage(1000, 1, fresh=1), 2, 1),
        (coverage(1000, 10, fresh=1), 2, 1),
        (coverage(1000, 5, 3, fresh=1), 3, 1),
        (coverage(1000, 4, 3, 2, fresh=5), 4, 3),
        (coverage(1000, 900, 3, fresh=2), 2, 2),
        (coverage(1000, fresh=1), 1, 1),
        (coverage(1000, 500, 200), 3, 0),
        (coverage(1000, 500, 200), 2, 2),
        (coverage(1000), 1, 0),
    ],
)
def test_how_many_are_joined(found: IndexCoverage, most: int, joined: int) -> None:
    assert segments_to_join(found, max_segments=most) == joined


@given(sizes, st.integers(1, 10))
def test_never_more_than_wanted_are_left(fresh: list[int], most: int) -> None:
    """Whatever comes, one build after another."""
    standing: list[int] = []
    written = 0
    for size in fresh:
        found = IndexCoverage(tuple(standing), ((0, size),))
        join = segments_to_join(found, max_segments=most)
        kept, taken = standing[: len(standing) - join], standing[len(standing) - join :]
        standing = [*kept, sum(taken) + size]
        written += standing[-1]
        assert len(standing) <= most
    assert sum(standing) == sum(fresh)


def test_rows_are_not_written_again_for_every_build() -> None:
    standing, written = [1_000_000], 0
    for _ in range(1000):
        found = IndexCoverage(tuple(standing), ((0, 1000),))
        join = segments_to_join(found, max_segments=8)
        kept, taken = standing[: len(standing) - join], standing[len(standing) - join :]
        standing = [*kept, sum(taken) + 1000]
        written += standing[-1]
    # All of it once for each build would be 1.5 thousand million rows.
    assert written < 30 * 1_000_000


@given(
    st.lists(st.integers(0, 100), min_size=1, max_size=30).map(lambda r: list(enumerate(r))),
    st.integers(1, 8),
)
def test_groups_have_every_fragment_once(uncovered: list[tuple[int, int]], groups: int) -> None:
    found = group_fragments(uncovered, groups=groups)

    assert len(found) == min(groups, len(uncovered))
    assert all(found)
    assert sorted(number for group in found for number in group) == [n for n, _ in uncovered]
    loads = [sum(max(uncovered[number][1], 1) for number in group) for group in found]
    assert max(loads) - min(loads) <= max(max(count, 1) for _, count in uncovered)


def test_coverage_is_read_off_the_manifest(tmp_path: Path) -> None:
    table = indexed_table(tmp_path, "BTREE", count=100)
    merge_rows(table, rows(100, 10), rows(110, 20))
    base = table.base()
    description = describe_index(base, "idx")
    assert description is not None

    found = index_coverage(base, description)

    assert found == IndexCoverage((100,), ((1, 10), (2, 20)))
    assert found.uncovered_rows == 30
    assert describe_index(base, "other") is None


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", every(3, KINDS))
def test_segments_stay_few_and_models_the_same(tmp_path: Path, kind: str) -> None:
    table = indexed_copy(tmp_path, kind)
    before = models(table) if kind in VECTOR else None
    counts = []
    for turn in range(5):
        merge_rows(table, rows(1000 + 40 * turn, 40, shift=turn))
        result = build_indexes(table.location, IndexOptions(max_segments=3))
        assert result.warnings == ()
        assert caught_up(table.base(), "idx") == {REGION: turn + 1}
        counts.append(len(segments(table)))
        if kind in VECTOR:
            assert models(table) == before
    assert counts == [2, 3, 2, 3, 3]

    result = build_indexes(table.location, IndexOptions(max_segments=1))

    assert (result.commits, len(segments(table))) == (1, 1)
    if kind in VECTOR:
        assert models(table) == before
        assert recall(table, answers(table, kind)) > 0.5
    else:
        assert answers(table, kind)[0]
    assert build_indexes(table.location, IndexOptions(max_segments=1)).commits == 0


def _clusters(counts: tuple[int, ...]) -> pa.Table:
    """Vectors close to one centroid each, so many at every one."""
    centres = np.repeat(np.arange(len(counts)), counts)
    vectors = np.random.default_rng(0).standard_normal((len(centres), DIMENSION)) * 0.1
    vectors[:, 0] += 10 * centres
    made = rows(0, len(centres))
    array = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel().astype("float32")), 8)
    return made.set_column(4, SCHEMA.field("vector"), array)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "case", "ours"),
    [
        # Every pair of two of these once.
        pytest.param(kind, case, ours, marks=[] if default else pytest.mark.slow)
        for kind, split_by_us in (("IVF_FLAT", False), ("IVF_PQ", True), ("IVF_SQ", False))
        for case in ("partitions to join", "partitions to split")
        for ours in (True, False)
        for default in [ours is (split_by_us is (case == "partitions to split"))]
    ],
)
def test_small_and_large_partitions_stay(tmp_path: Path, kind: str, case: str, ours: bool) -> None:
    """Lance's own optimization joins and splits partitions, which gives other centroids."""
    centroids = np.zeros((3, DIMENSION), "float32")
    centroids[:, 0] = [0, 10, 20]
    small = case == "partitions to join"
    uri = str(tmp_path / "table")
    start = _clusters((100, 3000, 3000) if small else (200, 200, 200))
    dataset = lance.write_dataset(start, uri, schema=SCHEMA)
    create_index(dataset, kind, num_partitions=3, ivf_centroids=centroids)
    table = memwal.enable(
        uri, primary_key=["id"], region_spec="unsharded", maintained_indexes=["idx"]
    )
    before = models(table)
    merge_rows(table, rows(10_000, 1 if small else 40_000, shift=-5.0))

    if ours:
        build_indexes(table.location)
        # The shape that Lance's own optimization would see next.
        build_indexes(table.location, IndexOptions(max_segments=1))
    else:
        table.base().dataset.optimize.optimize_indices(index_names=["idx"])

    assert (models(table) == before) is ours


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", some(VECTOR, "IVF_PQ", "IVF_RQ", "IVF_HNSW_FLAT"))
@pytest.mark.parametrize("max_tasks", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_an_index_of_which_no_row_is_left_keeps_its_model(
    tmp_path: Path, kind: str, max_tasks: int
) -> None:
    table = indexed_copy(tmp_path, kind)
    before = models(table)
    merge_rows(table, rows(0, 300, seed=1, shift=2.0), rows(300, 300, seed=2, shift=2.0))

    build_indexes(table.location, IndexOptions(max_tasks=max_tasks, part_rows=1))

    assert models(table) == before
    assert caught_up(table.base(), "idx") == {REGION: 2}
    merge_rows(table, rows(2000, 30))
    build_indexes(table.location, IndexOptions(max_segments=1))
    assert models(table) == before
    assert recall(table, answers(table, kind)) > 0.5


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("kind", "ours"),
    [
        *((kind, True) for kind in KINDS if kind not in VECTOR),
        *((kind, False) for kind in ("BTREE", "BITMAP", "LABEL_LIST", "INVERTED")),
        *(
            pytest.param(kind, False, marks=pytest.mark.slow)
            for kind in ("ZONEMAP", "BLOOMFILTER", "NGRAM")
        ),
    ],
)
def test_rows_that_keep_their_ids_are_not_found_by_what_they_held(
    tmp_path: Path, kind: str, ours: bool
) -> None:
    """Lance asks every segment, also those that are older than the row's last change."""
    table = indexed_copy(tmp_path, kind, stable_row_ids=True)
    changed = rows(1000, 100)
    changed = changed.set_column(0, SCHEMA.field("id"), pa.array(range(100, 200)))
    changed = changed.set_column(1, "n", pa.array([5000] * 100, pa.int64()))
    changed = changed.set_column(2, "text", pa.array(["changed"] * 100))
    labels = pa.array([["changed"]] * 100, SCHEMA.field("labels").type)
    changed = changed.set_column(3, "labels", labels)
    merge_rows(table, rows(600, 50), changed.cast(SCHEMA))

    if ours:
        build_indexes(table.location, IndexOptions(max_tasks=3, part_rows=1))
        merge_rows(table, rows(700, 50))
        build_indexes(table.location, IndexOptions(max_tasks=3, part_rows=1))
    else:
        optimize = table.base().dataset.optimize
        optimize.optimize_indices(index_names=["idx"], num_indices_to_merge=0)

    wrong = [key for key in answers(table, kind)[0] if 100 <= key < 200]
    if ours:
        assert len(segments(table)) == 1
        assert wrong == []
    else:
        assert bool(wrong) is (kind in ("BITMAP", "LABEL_LIST", "INVERTED"))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", some(VECTOR, "IVF_FLAT", "IVF_SQ", "IVF_HNSW_PQ"))
def test_vector_indexes_over_rows_that_keep_their_ids(tmp_path: Path, kind: str) -> None:
    table = indexed_copy(tmp_path, kind, stable_row_ids=True)
    before = models(table)
    for turn in range(2):
        merge_rows(table, rows(500 + turn, 200, seed=turn))
        build_indexes(table.location, IndexOptions(max_tasks=3, part_rows=1))
        assert len(segments(table)) == 1
        assert models(table) == before
    found = answers(table, kind)
    assert all(len(set(keys)) == len(keys) for keys in found)
    assert recall(table, found) > 0.5
