"""Indexes of the base table that must not be used, since they may miss rows that they cover.

A read or a merge takes a row for absent if an index that covers its fragment does not find it. An
index that is *stale* misses rows without any error. That happens in tables with stable row ids:

* Lance 14 stores row addresses in the BTREE indexes of such a table (version 1 of the index), and
  rewrites the index when a compaction moves the rows;
* older clients, LanceDB 0.40 among them, do not know that version. They ignore the index, and their
  compaction supposes that it holds row ids, which do not change: it only replaces the fragments in
  the index's bitmap by the fragments that it wrote. None of their rows is found through the index
  any more.

Stable row ids and the version tell that an index *may* be stale. The manifest cannot show that it
*is*: bitmap, version, time and table version of a correctly rewritten index are the same. Such an
index is therefore probed: rows of each fragment that it covers are looked up
through it. The compaction of an older client leaves none of a fragment's rows found. A compaction
by Lance 14 after that rewrites the index for the rows that it finds, and may put them into one
fragment with rows that it does not find, before or after them. Therefore the first and the last row
of a fragment are probed, and up to 14 in between; rows that are missed between two of these, of a
fragment that was small beside others, are not noticed. Neither a segment nor the addresses of a
fragment's rows ever change, so each fragment is probed once per segment and process: its rows are
read and looked up together with those of others.

Other kinds of index hold row ids in such tables, or are rewritten by every client. In tables
without stable row ids every compaction rewrites the indexes, or leaves the new fragments out of the
bitmap; these tables are not probed. Fragments of a bitmap that do not exist any more do no harm.

Without it, keys are found by a scan or a join, and filters are evaluated on the rows.
:func:`memwal.jobs.index.job.build_indexes` builds a stale index anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.errors import CorruptDataError, InvalidInputError, ObjectNotFoundError
from memwal.expressions.predicate import literals, quoted
from memwal.lsm.indexes.kinds import kind_of
from memwal.util.log import warn_once

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

logger = logging.getLogger(__name__)

# Facts that stay true. If there are too many, all are dropped.
_MAX_VERSIONS: Final = 256
_MAX_FRAGMENTS: Final = 256_000
# Fragments of one probe.
_PROBED_AT_ONCE: Final = 1_000
# Rows of one fragment, of one probe of few fragments and of many.
_MOST_ROWS: Final = 16
_LEAST_ROWS: Final = 2


@dataclass(frozen=True, slots=True)
class UnusableIndexes:
    """Indexes of one version of the base table that are not used."""

    # By the name of each stale index, the fragments that it covers and finds no rows of, ascending.
    stale: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # Names of indexes that cannot be probed.
    unproven: tuple[str, ...] = ()


_unusable: dict[tuple[str, int, bytes], UnusableIndexes] = {}
_finds: dict[tuple[str, str, int], bool] = {}  # by address of the table, segment and fragment


def unusable_indexes(base: BaseTable) -> tuple[str, ...]:
    """Return the names of the scalar indexes that must not be used; a warning names them once.

    Empty without any request for a table without stable row ids; for others see the module.
    """
    unusable = find_unusable(base)
    for name in unusable.stale:
        warn_once(
            logger,
            "index %s of %s does not find rows that it covers: a client that does not know its "
            "format compacted the table. It is not used; memwal index builds it anew if it is "
            "maintained, otherwise create it again",
            name,
            str(base.location),
        )
    for name in unusable.unproven:
        warn_once(
            logger,
            "index %s of %s cannot be tested for rows that it misses, and is not used",
            name,
            str(base.location),
        )
    return (*unusable.stale, *unusable.unproven)


def find_unusable(base: BaseTable) -> UnusableIndexes:
    """Return the indexes of a version that miss rows, or may.

    Raises StoreError if a probe fails for a reason that has nothing to do with the index.
    """
    if not base.dataset.has_stable_row_ids:
        return UnusableIndexes()
    key = (base.location.uri, base.version, base.digest)
    cached = _unusable.get(key)
    if cached is None:
        cached = _probe_table(base)
        if len(_unusable) >= _MAX_VERSIONS:
            _unusable.clear()
        _unusable[key] = cached
    return cached


def _probe_table(base: BaseTable) -> UnusableIndexes:
    stale: dict[str, tuple[int, ...]] = {}
    unproven = []
    fragments = set(base.dataset.fragment_ids())
    for index in base.dataset.describe_indices():
        version = kind_of(index).address_version
        if version is None or all(segment.index_version < version for segment in index.segments):
            continue
        finds = _probe_index(base, index, fragments)
        silent = tuple(sorted(number for number, is_found in finds.items() if is_found is False))
        if silent:
            stale[index.name] = silent
        elif None in finds.values():
            unproven.append(index.name)
    return UnusableIndexes(stale, tuple(unproven))


def _probe_index(
    base: BaseTable, index: IndexDescription, fragments: set[int]
) -> dict[int, bool | None]:
    """Return for each covered fragment whether the index finds its rows; None if that is unknown.

    A fragment without rows is left out.
    """
    results: dict[int, bool | None] = {}
    unknown: list[tuple[int, tuple[str, str, int]]] = []
    for segment in index.segments:
        for fragment in sorted(fragments.intersection(segment.fragment_ids)):
            key = (base.location.uri, segment.uuid, fragment)
            cached = _finds.get(key)
            if cached is None:
                unknown.append((fragment, key))
            else:
                results[fragment] = cached
    for start in range(0, len(unknown), _PROBED_AT_ONCE):
        part = unknown[start : start + _PROBED_AT_ONCE]
        probed = _probe(base, index.field_names[0], [fragment for fragment, _ in part])
        for fragment, key in part:
            if fragment not in probed:
                continue
            is_found = results[fragment] = probed[fragment]
            if is_found is not None:
                if len(_finds) >= _MAX_FRAGMENTS:
                    _finds.clear()
                _finds[key] = is_found
    return results


def _probe(base: BaseTable, column: str, fragments: Sequence[int]) -> dict[int, bool | None]:
    """Look rows of each fragment up by their values, through the index on the column."""
    try:
        with lance_errors(f"probing the index on {column} of {base.location}"):
            rows = _some_rows(base, column, fragments)
            if not rows.num_rows:
                return {}
            values, row_ids = rows.column("value"), rows.column("_rowid").to_numpy()
            found = [
                base.dataset.scanner(columns=[], filter=predicate, with_row_id=True)
                .to_table()
                .column("_rowid")
                .to_numpy()
                for predicate in _predicates(base, column, values.combine_chunks())
            ]
    except (CorruptDataError, InvalidInputError, ObjectNotFoundError):
        return dict.fromkeys(fragments)
    is_missed = ~np.isin(row_ids, np.concatenate(found))
    numbers = rows.column("fragment").to_numpy()
    silent = set(numbers[is_missed].tolist())
    return {number: number not in silent for number in np.unique(numbers).tolist()}


def _some_rows(base: BaseTable, column: str, fragments: Sequence[int]) -> pa.Table:
    """Read ``fragment``, ``value`` and ``_rowid`` of rows of each fragment that has rows.

    They are evenly spaced, with the first and the last one.
    """
    most = min(max(_PROBED_AT_ONCE // len(fragments), _LEAST_ROWS), _MOST_ROWS)
    wanted, offset = set(fragments), 0
    offsets: list[int] = []
    numbers: list[int] = []
    for fragment in base.dataset.get_fragments():
        count = fragment.count_rows()  # from the manifest
        if count and fragment.fragment_id in wanted:
            chosen = np.unique(np.linspace(0, count - 1, min(most, count), dtype=np.int64))
            offsets += (offset + chosen).tolist()
            numbers += [fragment.fragment_id] * len(chosen)
        offset += count
    path = _sql_path(base, column)
    rows = base.dataset.take(offsets, columns={"value": path, "_rowid": "_rowid"})
    return rows.append_column("fragment", pa.array(numbers, pa.int64()))


def _predicates(base: BaseTable, column: str, values: pa.Array) -> list[str | pc.Expression]:
    """Return predicates that rows with these values pass, and that an index answers.

    Raises InvalidInputError for values of a type, or in a column, that no predicate can name.
    """
    path = _sql_path(base, column)
    predicates: list[str | pc.Expression] = []
    if values.null_count:
        predicates.append(f"{path} is null")
    values = values.drop_null().unique()
    if not len(values):
        return predicates
    try:
        return [*predicates, f"{path} in ({', '.join(literals(values))})"]
    except InvalidInputError:
        if column not in base.schema.names:
            raise
    # Other types go to Lance as an expression, which knows no children of columns.
    return [*predicates, pc.field(column).isin(values)]


def _sql_path(base: BaseTable, column: str) -> str:
    """Return an indexed column, or child of one, as SQL has it."""
    return quoted(column) if column in base.schema.names else quoted(*column.split("."))
