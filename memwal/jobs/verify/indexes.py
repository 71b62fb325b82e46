"""Checks of indexes, of the base table or of a generation: files, row counts, sampled answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.named_files import find_bad_index_files
from memwal.base_table.snapshot import BaseTable
from memwal.boundary.lance_errors import first_line
from memwal.errors import InvalidInputError, TableSetupError
from memwal.format.paths import SYSTEM_INDEX_PREFIX
from memwal.jobs.verify.findings import Finding
from memwal.lsm.indexes.kinds import Family, kind_of
from memwal.reader.base_rows import key_predicate
from memwal.reader.row_set import ROW_ID
from memwal.reader.unreadable_indexes import is_index_damage

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

_SAMPLED_ROWS: Final = 64
_MAX_SHOWN: Final = 3


def check_index_files(base: BaseTable) -> Iterator[Finding]:
    """Check that each file of an index is stored, has its length, and ends as it must."""
    by_index: dict[str, list[str]] = {}
    try:
        bad = find_bad_index_files(base)
    except TableSetupError:
        # Cleaned up since it was opened, so there are newer versions.
        return
    for file in bad:
        by_index.setdefault(str(file.index), []).append(str(file))
    for name, files in by_index.items():
        text = f"{len(files)} files: {'; '.join(files[:_MAX_SHOWN])}"
        yield Finding("index-damaged", name, text)


def check_index_contents(base: BaseTable) -> Iterator[Finding]:
    """Compare each index that can be read with the rows that it covers."""
    for name, problem in index_problems(base.dataset):
        yield Finding("index-wrong", name, problem)


def index_problems(dataset: lance.LanceDataset) -> Iterator[tuple[str, str]]:
    """Yield the name and the problem of each index that does not fit the rows of its data set.

    Lance opens every segment and counts the rows that it covers. A scalar index is asked for the
    values of some rows, and must find the rows that a scan without it finds. One scan of its column
    per scalar index.
    """
    rows = dataset.count_rows()
    for description in dataset.describe_indices():
        is_trained = any(segment.fragment_ids for segment in description.segments)
        if description.name.startswith(SYSTEM_INDEX_PREFIX) or not is_trained:
            continue
        try:
            problem = _count_problem(dataset, description, rows)
            if problem is None and rows:
                problem = _answer_problem(dataset, description, rows)
        except BaseException as error:
            if not is_index_damage(error):
                raise
            problem = f"it cannot be read: {first_line(error)}"
        if problem is not None:
            yield description.name, problem


def _count_problem(
    dataset: lance.LanceDataset, description: IndexDescription, rows: int
) -> str | None:
    stats = dataset.stats.index_stats(description.name)
    if dataset.has_stable_row_ids:
        # An updated row is in the segment of its old fragment as well.
        return None
    counted = stats["num_indexed_rows"] + stats["num_unindexed_rows"]
    return None if counted == rows else f"it counts {counted} rows of {rows}"


def _answer_problem(
    dataset: lance.LanceDataset, description: IndexDescription, rows: int
) -> str | None:
    """Compare the answers about the values of some rows; None for values without literals."""
    if kind_of(description).family is not Family.SCALAR or len(description.field_names) != 1:
        return None
    (column,) = description.field_names
    if column not in dataset.schema.names:
        return None
    chosen = np.random.default_rng().choice(rows, min(rows, _SAMPLED_ROWS), replace=False)
    try:
        values = dataset.take(np.sort(chosen).tolist(), columns=[column]).column(column)
        distinct = pc.drop_null(values).combine_chunks().unique()
        predicate = key_predicate(pa.table({column: distinct})) if len(distinct) else None
    except (InvalidInputError, pa.ArrowNotImplementedError):
        return None
    if predicate is None:
        return None
    by_index, by_scan = (
        dataset.scanner(
            columns=[], filter=predicate, with_row_id=True, use_scalar_index=use
        ).to_table()[ROW_ID]
        for use in (True, False)
    )
    if np.array_equal(np.sort(by_index.to_numpy()), np.sort(by_scan.to_numpy())):
        return None
    return f"for {len(distinct)} values it finds {len(by_index)} rows, a scan {len(by_scan)}"
