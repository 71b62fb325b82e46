"""Compare the rows of merged generations that are still stored with the base table.

Generations are collected oldest first, so the newest stored row of a key is the newest that was
ever merged. The base table must have exactly that row, unless another client wrote to the base
table directly since. Therefore the commits since the merge are checked to be merges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.base_table.blobs import blob_names, with_values
from memwal.base_table.commit_records import (
    APPEND,
    DETAILS_CHANGE,
    RESTORE,
    REWRITE,
    commit_operation,
    read_details,
)
from memwal.base_table.region_marks import UNMARKED, read_marks
from memwal.base_table.snapshot import BaseTable, open_base, open_dataset
from memwal.errors import CorruptDataError, MemWalError, ObjectNotFoundError, StoreAccessError
from memwal.format.paths import BLOOM_FILTER_NAME, generation_dir
from memwal.format.region_manifest import RegionManifest
from memwal.format.values import VERSIONS_WITHOUT_NULL_STRUCTS, fill_null_structs
from memwal.jobs.verify.damage import Unreadable, damage_as_unreadable
from memwal.jobs.verify.findings import Finding
from memwal.lsm.indexes.catchup import covered_fragments
from memwal.lsm.region_places import RegionPlaces
from memwal.quality.quarantine import FOLDER, ROW, Quarantine
from memwal.reader.base_rows import scan_keys
from memwal.reader.latest import ROW_ADDRESS, NewestRows, find_newest, read_keys
from memwal.reader.sources.generation import GenerationSource, open_generation
from memwal.region.rows import key_column
from memwal.util.arrays import Mask, Numbers, distinct

_UNSIGNED = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


def differing_rows(left: pa.Table, right: pa.Table) -> npt.NDArray[np.int64]:
    """Return the numbers of the rows that differ, ascending, of tables with the same columns.

    Floats are compared by their bits, so that NaN equals itself. Dictionaries are compared by their
    values: a merge may number these in another way. For all types, Arrow only has a fast comparison
    of whole arrays. A column that differs is therefore bisected until the rows are found, in as
    many steps as there are differences, times the logarithm of the rows.
    """
    differs = np.zeros(left.num_rows, np.bool_)
    for name in left.column_names:
        values, others = (_comparable_column(t.column(name)) for t in (left, right))
        if others.type != values.type:
            others = others.cast(values.type)
        _mark_differing(values, others, differs, 0)
    return np.flatnonzero(differs)


def _mark_differing(left: pa.Array, right: pa.Array, differs: Mask, start: int) -> None:
    if left.equals(right):
        return
    if len(left) == 1:
        differs[start] = True
        return
    middle = len(left) // 2
    _mark_differing(left[:middle], right[:middle], differs, start)
    _mark_differing(left[middle:], right[middle:], differs, start + middle)


def _comparable_column(column: pa.ChunkedArray) -> pa.Array:
    chunks = [_comparable(chunk) for chunk in column.chunks]
    return pa.concat_arrays(chunks) if chunks else _comparable(pa.array([], column.type))


def _comparable(array: pa.Array) -> pa.Array:
    """Replace floats by unsigned integers with the same bits, and dictionaries by their values.

    At any depth of nesting.
    """
    data_type = array.type
    if isinstance(data_type, pa.BaseExtensionType):
        return _comparable(array.storage)
    if pt.is_dictionary(data_type):
        return _comparable(array.dictionary_decode())
    if pt.is_floating(data_type):
        return array.view(_UNSIGNED[data_type.bit_width])
    if pt.is_struct(data_type):
        parts = [_comparable(part) for part in array.flatten()]
        if not parts:
            return array
        names = [field.name for field in data_type]
        return pa.StructArray.from_arrays(parts, names=names, mask=array.is_null())
    if pt.is_fixed_size_list(data_type):
        values = _comparable(array.values.slice(array.offset * data_type.list_size))
        values = values[: len(array) * data_type.list_size]
        return pa.FixedSizeListArray.from_arrays(values, data_type.list_size, mask=array.is_null())
    if pt.is_list(data_type) or pt.is_large_list(data_type):
        kind = pa.ListArray if pt.is_list(data_type) else pa.LargeListArray
        lengths = array.value_lengths().fill_null(0).to_numpy()
        width = np.int32 if pt.is_list(data_type) else np.int64
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(width)
        return kind.from_arrays(
            pa.array(offsets), _comparable(array.flatten()), mask=array.is_null()
        )
    return array


# Commits that change no row.
_KEEPS_ROWS: Final = frozenset({DETAILS_CHANGE, REWRITE, "UpdateConfig"})
_MAX_VERSIONS: Final = 1_000


def are_merges_since(base: BaseTable, region_id: UUID, generation: int) -> bool:
    """Return whether each commit since a generation was merged is a merge, or changes no row.

    False too if the stored history does not reach back to the merge. A delete pass of a merge looks
    like a direct delete, and counts as one.
    """
    after = base.details
    for version in range(base.version, max(0, base.version - _MAX_VERSIONS), -1):
        try:
            before = read_details(base, version - 1)
            operation = commit_operation(base, version)
        except (MemWalError, OSError, ValueError, RuntimeError):
            # The version was cleaned up, or has an operation that pylance cannot show.
            return False
        if operation is None:
            return False
        if before.merged.get(region_id, 0) < generation <= after.merged.get(region_id, 0):
            # Not a merge: a change of the details alone.
            return operation != DETAILS_CHANGE
        is_merge = before.merged != after.merged and operation != RESTORE
        if not is_merge and operation not in _KEEPS_ROWS:
            return False
        after = before
    return False


_GROUP_ROWS: Final = 2_000_000
_SCANNED_ROWS: Final = 1_000_000
_COMPARED_ROWS: Final = 8_192
_COMPARED_BLOBS: Final = 32


@dataclass(frozen=True, slots=True)
class _OpenGeneration:
    """A generation that is named by the manifest and stored."""

    source: GenerationSource
    folder: str
    merged: bool  # otherwise it is still to be merged


@dataclass(frozen=True, slots=True, eq=False)
class _NewestMerged:
    """Newest merged row of each key, and the row of that key in the base table."""

    stored: tuple[_OpenGeneration, ...]  # merged generations, to which ``source`` refers
    keys: pa.Array  # encoded keys; the arrays below have one element for each
    source: Numbers  # index of the generation with the newest row, in ``stored``; ascending
    addresses: npt.NDArray[np.uint64]  # address of that row in the generation
    deleted: Mask  # whether that row is a tombstone
    base_row: Numbers  # row id in the base table; -1 if it does not have the key
    fragment: Numbers  # fragment of the base table; -1 if it does not have the key
    row_count: Numbers  # number of rows of the key in the base table


def check_merged_rows(
    base: BaseTable,
    manifests: Mapping[UUID, RegionManifest],
    quarantines: Sequence[Quarantine],
    *,
    sampled: Mapping[UUID, Collection[int]] | None = None,
) -> Iterator[Finding]:
    """Compare the rows of merged generations with the base table, which was read before manifests.

    Not compared are: regions of an earlier spec, or of a place that other regions have or had,
    whose keys may have newer rows in those, which may be collected by now; keys that a generation
    deletes which is not merged yet, since the delete pass of a merge comes before its commit;
    generations before the ``first`` of their region's mark, which a person gave up after the base
    table went back; and rows that are in one of the ``quarantines``. ``sampled`` has the
    generations to compare, by region; all by default.
    """
    newest_spec = max((spec.spec_id for spec in base.details.region_specs), default=0)
    places = RegionPlaces(base)
    shared, unknown = places.of_several()
    if unknown:
        # They may have newer rows of any key.
        return
    # Read after the base table: a decision writes its marks before the commit of its progress. If
    # this version counts generations as merged that were given up, their marks are seen.
    marks = read_marks(base.location.store)
    group: list[list[_OpenGeneration]] = []
    rows = 0
    for manifest in manifests.values():
        if manifest.spec_id != newest_spec or places.place(manifest) in shared:
            continue
        region = _open_region(base, manifest, marks.get(manifest.region_id, UNMARKED).first)
        if not any(generation.merged for generation in region):
            continue
        group.append(region)
        rows += sum(flushed.rows or _SCANNED_ROWS for flushed in manifest.flushed)
        if rows >= _GROUP_ROWS:
            yield from _check_group(base, quarantines, group, sampled)
            group, rows = [], 0
    if group:
        yield from _check_group(base, quarantines, group, sampled)


def check_added_rows(
    base: BaseTable, manifests: Mapping[UUID, RegionManifest], quarantines: Sequence[Quarantine]
) -> Iterator[Finding]:
    """Count the rows that merges added to a table without a primary key, which was read before.

    A row does not tell from which generation it came. So each merge is checked whose version is
    stored, with the one before it and all its generations: it added as many rows as these have, of
    which some may be in the ``quarantines``. Later changes of the rows are not known.
    """
    stored = {
        region_id: {flushed.generation: flushed for flushed in manifest.flushed}
        for region_id, manifest in manifests.items()
    }
    oldest = {region_id: min(listed) for region_id, listed in stored.items() if listed}
    # A merge that died before its commit may have left a row in both.
    quarantined = pa.concat_tables(rows.select([FOLDER, ROW]) for rows in _read_all(quarantines))
    distinct = quarantined.group_by([FOLDER, ROW]).aggregate([])
    folders = Counter(distinct.column(FOLDER).to_pylist())
    after = base
    for version in range(base.version, max(1, base.version - _MAX_VERSIONS), -1):
        progress = after.details.merged
        if all(progress.get(region_id, 0) < first for region_id, first in oldest.items()):
            return
        try:
            before = open_base(base.location, version=version - 1)
            operation = commit_operation(base, version)
        except (MemWalError, OSError, ValueError, RuntimeError):
            # The version was cleaned up, or has an operation that pylance cannot show.
            return
        merged = [
            stored.get(region_id, {}).get(number)
            for region_id, last in progress.items()
            for number in range(before.details.merged.get(region_id, 0) + 1, last + 1)
        ]
        if merged and operation == APPEND:
            expected = sum(
                (flushed.rows or 0) - folders[flushed.path] for flushed in merged if flushed
            )
            added = _rows_of(after) - _rows_of(before)
            if all(f is not None and f.rows is not None for f in merged) and added != expected:
                yield Finding(
                    "merged-row-lost" if added < expected else "merged-row-repeated",
                    f"version {version}",
                    f"its merge added {added} rows; its generations have {expected}",
                )
        after = before


def _rows_of(base: BaseTable) -> int:
    return int(base.dataset.count_rows())


def _open_region(base: BaseTable, manifest: RegionManifest, first: int) -> list[_OpenGeneration]:
    """Open the generations of a region from ``first`` on, oldest first.

    Empty if one of them is missing or damaged, which another check reports.
    """
    merged = base.details.merged.get(manifest.region_id, 0)
    generations = []
    for flushed in sorted(manifest.flushed, key=lambda flushed: flushed.generation):
        if flushed.generation < first:
            continue
        try:
            folder = generation_dir(manifest.region_id, flushed.path)
            with damage_as_unreadable(base.location.store, folder):
                source = open_generation(base, manifest.region_id, flushed.generation, flushed.path)
                # Without an identity, nothing is cached or read from a cache.
                source = replace(source, identity=None)
                read_keys(source, base.primary_key)
        except (Unreadable, CorruptDataError):
            return []
        generations.append(_OpenGeneration(source, folder, flushed.generation <= merged))
    return generations


def _check_group(
    base: BaseTable,
    quarantines: Sequence[Quarantine],
    regions: Sequence[list[_OpenGeneration]],
    sampled: Mapping[UUID, Collection[int]] | None,
) -> Iterator[Finding]:
    try:
        newest = _find_newest_stored(base, quarantines, regions)
        unchanged = np.zeros(len(newest.keys), np.bool_)
        for number, stored in enumerate(newest.stored):
            source = stored.source
            if sampled is None or source.generation in sampled.get(source.region_id, ()):
                yield from _check_generation(base, newest, number, unchanged)
    except Unreadable as error:
        text = f"rows of version {base.version} cannot be read: {error}"
        yield Finding("table-file-damaged", "data", text)
        return
    yield from _check_coverage(base, newest, unchanged)


def _find_newest_stored(
    base: BaseTable, quarantines: Sequence[Quarantine], regions: Sequence[list[_OpenGeneration]]
) -> _NewestMerged:
    """Find the newest merged rows, without regions that are collected during the check."""
    store = base.location.store
    while True:
        try:
            return _find_newest_merged(base, quarantines, regions)
        except ObjectNotFoundError:
            # Another check reports a generation that should not have been collected.
            remaining = [
                region
                for region in regions
                if all(store.exists(f"{stored.folder}/{BLOOM_FILTER_NAME}") for stored in region)
            ]
            if len(remaining) == len(regions):
                raise
            regions = remaining


def _find_newest_merged(
    base: BaseTable, quarantines: Sequence[Quarantine], regions: Sequence[list[_OpenGeneration]]
) -> _NewestMerged:
    primary_key = base.primary_key
    kind = key_column(base.schema.empty_table().select(list(primary_key)), primary_key).type
    opened = [generation for region in regions for generation in region]
    stored = tuple(generation for generation in opened if generation.merged)
    pending = tuple(generation for generation in opened if not generation.merged)
    newest = find_newest([generation.source for generation in stored], primary_key, kind)
    deleted = [pa.array([], kind)]
    for generation in pending:
        rows = read_keys(generation.source, primary_key)
        deleted.append(rows.keys.filter(pa.array(rows.deleted)))
    is_deleted = pc.is_in(newest.keys, value_set=pa.concat_arrays(deleted))
    compared = ~is_deleted.to_numpy(zero_copy_only=False)
    compared &= ~_find_quarantined(base, quarantines, stored, newest)
    keys = newest.keys.filter(pa.array(compared))
    with damage_as_unreadable(base.location.store, None):
        base_row, fragment, row_count = _locate_in_base(base, keys)
    return _NewestMerged(
        stored=stored,
        keys=keys,
        source=newest.source[compared],
        addresses=newest.addresses[compared],
        deleted=newest.deleted[compared],
        base_row=base_row,
        fragment=fragment,
        row_count=row_count,
    )


def _find_quarantined(
    base: BaseTable,
    quarantines: Sequence[Quarantine],
    stored: Sequence[_OpenGeneration],
    newest: NewestRows,
) -> Mask:
    """Mark rows that a merge quarantined: the base table has an older row of their key, or none."""
    mask = np.zeros(len(newest.keys), np.bool_)
    for rows in _read_all(quarantines):
        folders = pc.unique(rows.column(FOLDER)).to_pylist()
        for number, generation in enumerate(stored):
            folder = generation.folder.rpartition("/")[2]
            if folder in folders:
                of_folder = rows.filter(pc.equal(rows.column(FOLDER), folder))
                keys = key_column(of_folder, base.primary_key)
                is_quarantined = pc.is_in(newest.keys, value_set=keys.cast(newest.keys.type))
                mask |= (newest.source == number) & is_quarantined.to_numpy(zero_copy_only=False)
    return mask


def _read_all(quarantines: Sequence[Quarantine]) -> Iterator[pa.Table]:
    for number, quarantine in enumerate(quarantines):
        try:
            yield quarantine.read(state=None)
        except StoreAccessError:
            # The first is the one of the rules; there may be no rights for others.
            if not number:
                raise


def _locate_in_base(base: BaseTable, keys: pa.Array) -> tuple[Numbers, Numbers, Numbers]:
    """Find row id, fragment and number of rows of each key in the base table."""
    row, fragment = np.full(len(keys), -1, np.int64), np.full(len(keys), -1, np.int64)
    fragments = base.dataset.get_fragments()
    addresses, at = scan_keys(base, keys, fragments, by=ROW_ADDRESS)
    fragment[at] = (addresses >> np.uint64(32)).astype(np.int64)
    row_count = np.bincount(at, minlength=len(keys))
    # Without stable row ids, the id of a row is its address.
    ids = addresses
    if base.dataset.has_stable_row_ids:
        ids, at = scan_keys(base, keys, fragments)
    row[at] = ids.astype(np.int64)
    return row, fragment, row_count


def _check_generation(
    base: BaseTable, newest: _NewestMerged, number: int, unchanged: Mask
) -> Iterator[Finding]:
    """Compare the rows of one generation that are the newest of their keys."""
    stored = newest.stored[number]
    own = np.arange(*np.searchsorted(newest.source, [number, number + 1]))
    in_base, deleted = newest.base_row[own] >= 0, newest.deleted[own]
    live = own[in_base & ~deleted]
    differing = _find_differing(base, newest, stored, live)
    unchanged[np.setdiff1d(live, differing, assume_unique=True)] = True
    lost, present = own[~in_base & ~deleted], own[in_base & deleted]
    problems = (
        ("merged-row-lost", lost, "are not in the base table"),
        ("merged-row-differs", differing, "have other values in the base table"),
        ("deleted-row-present", present, "are deleted, but are in the base table"),
    )
    if not any(len(rows) for _, rows, _ in problems):
        return
    region_id, generation = stored.source.region_id, stored.source.generation
    are_merges = are_merges_since(base, region_id, generation)
    for code, rows, what in problems:
        if len(rows):
            yield Finding(
                code if are_merges else "merged-row-changed",
                stored.folder if are_merges else f"{stored.folder} ({code})",
                f"{len(rows)} of {len(own)} rows {what}",
                region=region_id,
            )


def _find_differing(
    base: BaseTable, newest: _NewestMerged, stored: _OpenGeneration, live: Numbers
) -> Numbers:
    """Select the keys that have other values in the base table."""
    columns = _comparable_columns(base, stored)
    blobs = blob_names(base.schema)
    schema = pa.schema([base.schema.field(name) for name in columns])
    # Blobs are compared by their bytes: few rows at a time.
    count = _COMPARED_BLOBS if blobs else _COMPARED_ROWS
    read = [*columns, ROW_ADDRESS] if blobs else columns
    live = live[np.argsort(newest.addresses[live])]
    differing = [np.empty(0, np.int64)]
    for start in range(0, len(live), count):
        part = live[start : start + count]
        with damage_as_unreadable(base.location.store, None):
            merged = base.dataset._take_rows(newest.base_row[part].tolist(), columns=read)
            merged = with_values(base.dataset, merged, schema) if blobs else merged
        try:
            with damage_as_unreadable(base.location.store, stored.folder):
                dataset = stored.source.dataset
                rows = dataset._take_rows(newest.addresses[part].tolist(), columns=read)
                rows = with_values(dataset, rows, schema) if blobs else rows
        except Unreadable:
            # The check of the generation reports it.
            break
        if base.dataset.data_storage_version in VERSIONS_WITHOUT_NULL_STRUCTS:
            # The merge has filled them.
            rows, merged = _without_null_structs(rows), _without_null_structs(merged)
        differing.append(part[differing_rows(rows, merged)])
    return np.concatenate(differing)


def _without_null_structs(rows: pa.Table) -> pa.Table:
    columns = [
        pa.chunked_array([fill_null_structs(chunk) for chunk in column.chunks], column.type)
        for column in rows.columns
    ]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _comparable_columns(base: BaseTable, stored: _OpenGeneration) -> list[str]:
    """Return the columns that the generation was flushed with and whose type is the same now."""
    if stored.source.folder is not None:
        return list(base.schema.names)
    dataset = open_dataset(base.location, stored.folder)
    kinds = {
        field.id(): dataset.schema.field(field.name()).type
        for field in dataset.lance_schema.fields()
    }
    ids = base.field_ids()
    return [field.name for field in base.schema if kinds.get(ids[field.name]) == field.type]


def _check_coverage(base: BaseTable, newest: _NewestMerged, unchanged: Mask) -> Iterator[Finding]:
    """Check that indexes cover the rows that their recorded catch-up includes.

    Only rows that are as the merge wrote them count: a row that was updated directly is in a
    fragment that no index has to cover, independent of the catch-up of the index.
    """
    sources = [stored.source for stored in newest.stored]
    generation = np.array([source.generation for source in sources], np.int64)
    for index in base.dataset.describe_indices():
        progress = base.details.catchup.get(index.name)
        if progress is None:
            continue
        reached = np.array([progress.get(s.region_id, 0) for s in sources], np.int64)
        included = generation[newest.source] <= reached[newest.source]
        covered = np.array(sorted(covered_fragments(index)), np.int64)
        uncovered = (
            unchanged & (newest.row_count == 1) & included & ~np.isin(newest.fragment, covered)
        )
        if uncovered.any():
            fragments = distinct(newest.fragment[uncovered])
            yield Finding(
                "catchup-unproven",
                index.name,
                f"{int(uncovered.sum())} rows in {len(fragments)} fragments are not covered",
            )
