"""Compare the rows of merged generations that are still stored with the base table.

Generations are collected oldest first, so the newest stored row of a key is the newest that was
ever merged. The base table must have exactly that row, unless another writer wrote to the base
table directly since; commits other than merges are therefore looked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.base_table.commit import REWRITE, commit_kind
from memwal.base_table.snapshot import BaseTable, open_dataset, read_table_manifest
from memwal.errors import CorruptDataError, MemWalError, ObjectNotFoundError
from memwal.format.lance_manifest import find_mem_wal_index
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import BLOOM_FILTER_NAME, generation_dir
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.verify.findings import Finding
from memwal.jobs.verify.task import Unreadable, reading
from memwal.quality.quarantine import FOLDER, Quarantine
from memwal.reader.base_indexes import covered_fragments
from memwal.reader.latest import NewestRows, find_newest, read_keys
from memwal.reader.sources.generation import GenerationSource, open_generation
from memwal.region.rows import key_column

_UNSIGNED = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


def differing_rows(left: pa.Table, right: pa.Table) -> npt.NDArray[np.int64]:
    """Numbers of the rows that are not the same, ascending.

    Floats are compared by their bits, so that NaN equals itself. Types have no fast comparison of
    their own beyond "are these arrays equal", so a column that is not is halved until the rows
    are found: as many steps as there are differences, times the logarithm of the rows.

    Parameters
    ----------
    left, right : pyarrow.Table
        With the same columns and the same number of rows.
    """
    differs: npt.NDArray[Any] = np.zeros(left.num_rows, np.bool_)
    for name in left.column_names:
        one, other = (_bits(_array(table.column(name))) for table in (left, right))
        if other.type != one.type:
            other = other.cast(one.type)
        _mark(one, other, differs, 0)
    return np.flatnonzero(differs)


def _array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _mark(one: pa.Array, other: pa.Array, differs: npt.NDArray[Any], start: int) -> None:
    if one.equals(other):
        return
    if len(one) == 1:
        differs[start] = True
        return
    middle = len(one) // 2
    _mark(one[:middle], other[:middle], differs, start)
    _mark(one[middle:], other[middle:], differs, start + middle)


def _bits(array: pa.Array) -> pa.Array:
    """The array with unsigned integers in the place of floats, at any depth."""
    data_type = array.type
    if isinstance(data_type, pa.BaseExtensionType):
        return _bits(array.storage)
    if pt.is_floating(data_type):
        return array.view(_UNSIGNED[data_type.bit_width])
    if pt.is_struct(data_type):
        parts = [_bits(part) for part in array.flatten()]
        if not parts:
            return array
        names = [field.name for field in data_type]
        return pa.StructArray.from_arrays(parts, names=names, mask=array.is_null())
    if pt.is_fixed_size_list(data_type):
        values = _bits(array.values.slice(array.offset * data_type.list_size))
        values = values[: len(array) * data_type.list_size]
        return pa.FixedSizeListArray.from_arrays(values, data_type.list_size, mask=array.is_null())
    if pt.is_list(data_type) or pt.is_large_list(data_type):
        kind = pa.ListArray if pt.is_list(data_type) else pa.LargeListArray
        lengths = array.value_lengths().fill_null(0).to_numpy()
        width = np.int32 if pt.is_list(data_type) else np.int64
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(width)
        return kind.from_arrays(pa.array(offsets), _bits(array.flatten()), mask=array.is_null())
    return array


# Commits that change no row.
_HARMLESS: Final = frozenset({"CreateIndex", REWRITE, "UpdateConfig"})
_MAX_VERSIONS: Final = 1_000


def only_merges_since(base: BaseTable, region_id: UUID, generation: int) -> bool:
    """Whether every commit since a generation was merged is a merge, or changes no row.

    A delete pass of a merge cannot be told from a direct delete and counts as one. False also
    when the history does not reach back so far: then it is not known.
    """
    after = base.details
    for version in range(base.version, max(0, base.version - _MAX_VERSIONS), -1):
        try:
            before = _details(base, version - 1)
            if before.merged.get(region_id, 0) < generation <= after.merged.get(region_id, 0):
                return True
            if before.merged == after.merged and commit_kind(base, version) not in _HARMLESS:
                return False
        except (MemWalError, OSError, ValueError, RuntimeError):
            # Cleaned up, or an operation that pylance cannot show.
            return False
        after = before
    return False


def _details(base: BaseTable, version: int) -> IndexDetails:
    entry = find_mem_wal_index(read_table_manifest(base.location, version))
    return IndexDetails.decode(entry.details) if entry is not None else IndexDetails()


_GROUP_ROWS: Final = 2_000_000
_SCANNED_ROWS: Final = 1_000_000
_COMPARED_ROWS: Final = 8_192

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Stored:
    """A generation that is named and stored."""

    source: GenerationSource
    folder: str


@dataclass(frozen=True, slots=True)
class _Region:
    """The generations of a region, oldest first."""

    merged: tuple[_Stored, ...]
    waiting: tuple[_Stored, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Newest:
    """The newest merged row of each key, and where the base table has the key."""

    stored: tuple[_Stored, ...]
    keys: pa.Array
    source: Numbers
    addresses: npt.NDArray[np.uint64]
    deleted: npt.NDArray[np.bool_]
    base_row: Numbers
    fragment: Numbers
    times: Numbers


def check_merged_rows(
    base: BaseTable,
    manifests: Mapping[UUID, RegionManifest],
    *,
    chosen: Mapping[UUID, Collection[int]] | None = None,
) -> Iterator[Finding]:
    """Compare the rows of merged generations with the base table.

    Regions of an earlier spec are left out: their keys may have newer rows in regions of a later
    one, which may be collected. Keys that a generation deletes which is not merged yet are left
    out too: the delete pass of a merge goes before its commit. And so are rows that stand in the
    quarantine beside the table.

    Parameters
    ----------
    base : BaseTable
        Read before the manifests.
    chosen : mapping of UUID to collection of int, optional
        Generations whose rows are compared; all by default.
    """
    newest_spec = max((spec.spec_id for spec in base.details.region_specs), default=0)
    group: list[_Region] = []
    rows = 0
    for manifest in manifests.values():
        if manifest.spec_id != newest_spec:
            continue
        opened = _open(base, manifest)
        if opened is None or not opened.merged:
            continue
        group.append(opened)
        rows += sum(flushed.rows or _SCANNED_ROWS for flushed in manifest.flushed)
        if rows >= _GROUP_ROWS:
            yield from _check_group(base, group, chosen)
            group, rows = [], 0
    if group:
        yield from _check_group(base, group, chosen)


def _open(base: BaseTable, manifest: RegionManifest) -> _Region | None:
    """None when a generation is gone or damaged, which is said elsewhere."""
    merged = base.details.merged.get(manifest.region_id, 0)
    found = []
    for flushed in sorted(manifest.flushed, key=lambda flushed: flushed.generation):
        try:
            folder = generation_dir(manifest.region_id, flushed.path)
            with reading(base.location.store, folder):
                source = open_generation(base, manifest.region_id, flushed.generation, flushed.path)
                # Without a name nothing is kept, or taken from what was kept before.
                source = replace(source, identity=None)
                read_keys(source, base.primary_key)
        except (Unreadable, CorruptDataError):
            return None
        found.append(_Stored(source, folder))
    return _Region(
        tuple(one for one in found if one.source.generation <= merged),
        tuple(one for one in found if one.source.generation > merged),
    )


def _check_group(
    base: BaseTable,
    regions: Sequence[_Region],
    chosen: Mapping[UUID, Collection[int]] | None,
) -> Iterator[Finding]:
    try:
        newest = _newest_of_stored(base, regions)
        sound = np.zeros(len(newest.keys), np.bool_)
        for number, stored in enumerate(newest.stored):
            source = stored.source
            if chosen is None or source.generation in chosen.get(source.region_id, ()):
                yield from _check_source(base, newest, number, sound)
    except Unreadable as error:
        text = f"rows of version {base.version} cannot be read: {error}"
        yield Finding.of("table-file-damaged", "data", text)
        return
    yield from _check_coverage(base, newest, sound)


def _newest_of_stored(base: BaseTable, regions: Sequence[_Region]) -> _Newest:
    """As :func:`_newest`, without regions of which a generation is collected meanwhile."""
    while True:
        try:
            return _newest(base, regions)
        except ObjectNotFoundError:
            # Whether it was to go is said elsewhere.
            left = [region for region in regions if _is_stored(base, region)]
            if len(left) == len(regions):
                raise
            regions = left


def _is_stored(base: BaseTable, region: _Region) -> bool:
    """Whether a collector has begun with none of its generations."""
    store = base.location.store
    return all(
        store.exists(f"{one.folder}/{BLOOM_FILTER_NAME}")
        for one in (*region.merged, *region.waiting)
    )


def _newest(base: BaseTable, regions: Sequence[_Region]) -> _Newest:
    primary_key = base.primary_key
    kind = key_column(base.schema.empty_table().select(list(primary_key)), primary_key).type
    stored = tuple(one for region in regions for one in region.merged)
    found = find_newest([one.source for one in stored], primary_key, kind)
    kept = np.ones(len(found.keys), np.bool_)
    for waiting in (one.source for region in regions for one in region.waiting):
        keys = read_keys(waiting, primary_key)
        going = keys.keys.filter(pa.array(keys.deleted))
        kept &= ~pc.is_in(found.keys, value_set=going).to_numpy(zero_copy_only=False)
    kept &= ~_quarantined(base, stored, found)
    known = found.keys.filter(pa.array(kept))
    with reading(base.location.store, None):
        base_row, fragment, times = _in_base(base, known)
    return _Newest(
        stored=stored,
        keys=known,
        source=found.source[kept],
        addresses=found.addresses[kept],
        deleted=found.deleted[kept],
        base_row=base_row,
        fragment=fragment,
        times=times,
    )


def _quarantined(
    base: BaseTable, stored: Sequence[_Stored], found: NewestRows
) -> npt.NDArray[np.bool_]:
    """Which rows a merge kept out: the base table has an older row of their key, or none."""
    rows = Quarantine.of(base.location).read(state=None)
    mask = np.zeros(len(found.keys), np.bool_)
    folders = pc.unique(rows.column(FOLDER)).to_pylist()
    for number, one in enumerate(stored):
        folder = one.folder.rpartition("/")[2]
        if folder in folders:
            of_folder = rows.filter(pc.equal(rows.column(FOLDER), folder))
            keys = key_column(of_folder, base.primary_key)
            here = pc.is_in(found.keys, value_set=keys.cast(found.keys.type))
            mask |= (found.source == number) & here.to_numpy(zero_copy_only=False)
    return mask


def _in_base(base: BaseTable, keys: pa.Array) -> tuple[Numbers, Numbers, Numbers]:
    """Row id and fragment of each key in the base table, and how many it has: one scan."""
    row = np.full(len(keys), -1, np.int64)
    fragment = np.full(len(keys), -1, np.int64)
    times = np.zeros(len(keys), np.int64)
    scanner = base.dataset.scanner(
        columns=list(base.primary_key), with_row_id=True, with_row_address=True
    )

    def look_up(batches: Sequence[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches)
        at = pc.index_in(key_column(table, base.primary_key), value_set=keys)
        hit = np.flatnonzero(at.is_valid().to_numpy(zero_copy_only=False))
        place = at.drop_null().to_numpy()
        row[place] = table.column("_rowid").to_numpy()[hit].astype(np.int64)
        np.add.at(times, place, 1)
        addresses = table.column("_rowaddr").to_numpy()[hit]
        fragment[place] = (addresses >> np.uint64(32)).astype(np.int64)

    waiting: list[pa.RecordBatch] = []
    # Each look-up makes a hash table of all the keys: few look-ups of many rows.
    for batch in scanner.to_batches():
        waiting.append(batch)
        if sum(part.num_rows for part in waiting) >= _SCANNED_ROWS:
            look_up(waiting)
            waiting = []
    if waiting:
        look_up(waiting)
    return row, fragment, times


def _check_source(
    base: BaseTable, newest: _Newest, number: int, sound: npt.NDArray[np.bool_]
) -> Iterator[Finding]:
    """Compare the rows of one generation that are the newest of their keys."""
    stored = newest.stored[number]
    mine = newest.source == number
    here = newest.base_row >= 0
    live = np.flatnonzero(mine & here & ~newest.deleted)
    differing = _differing(base, newest, stored, live)
    sound[np.setdiff1d(live, differing)] = True
    told = (
        (
            "merged-row-lost",
            int(np.count_nonzero(mine & ~here & ~newest.deleted)),
            "are not in the base table",
        ),
        ("merged-row-differs", len(differing), "have other values in the base table"),
        (
            "deleted-row-present",
            int(np.count_nonzero(mine & here & newest.deleted)),
            "are deleted, and are in the base table",
        ),
    )
    if not any(count for _, count, _ in told):
        return
    region_id, generation = stored.source.region_id, stored.source.generation
    certain = only_merges_since(base, region_id, generation)
    for code, count, what in told:
        if count:
            yield Finding.of(
                code if certain else "merged-row-changed",
                stored.folder if certain else f"{stored.folder} ({code})",
                f"{count} of {int(np.count_nonzero(mine))} rows {what}",
                region=region_id,
            )


def _differing(base: BaseTable, newest: _Newest, stored: _Stored, live: Numbers) -> Numbers:
    """Which of some keys have other values in the base table."""
    columns = _comparable(base, stored)
    live = live[np.argsort(newest.addresses[live])]
    found = [np.empty(0, np.int64)]
    for start in range(0, len(live), _COMPARED_ROWS):
        part = live[start : start + _COMPARED_ROWS]
        with reading(base.location.store, None):
            merged = base.dataset._take_rows(newest.base_row[part].tolist(), columns=columns)
        try:
            with reading(base.location.store, stored.folder):
                rows = stored.source.dataset._take_rows(
                    newest.addresses[part].tolist(), columns=columns
                )
        except Unreadable:
            # Its own check tells.
            break
        found.append(part[differing_rows(rows, merged)])
    return np.concatenate(found)


def _comparable(base: BaseTable, stored: _Stored) -> list[str]:
    """Columns that the generation had when it was flushed, in the type that they have now."""
    if stored.source.folder is not None:
        return list(base.schema.names)
    dataset = open_dataset(base.location, stored.folder)
    kinds = {
        field.id(): dataset.schema.field(field.name()).type
        for field in dataset.lance_schema.fields()
    }
    ids = base.field_ids()
    return [field.name for field in base.schema if kinds.get(ids[field.name]) == field.type]


def _check_coverage(
    base: BaseTable, newest: _Newest, sound: npt.NDArray[np.bool_]
) -> Iterator[Finding]:
    """See whether indexes cover the rows that they are said to have caught up with.

    Only rows that are as the merge left them: one that was updated directly is in a fragment that
    no index needs to cover, whatever it caught up with.
    """
    sources = [one.source for one in newest.stored]
    generation = np.array([source.generation for source in sources], np.int64)
    for index in base.dataset.describe_indices():
        progress = base.details.catchup.get(index.name)
        if progress is None:
            continue
        reached = np.array([progress.get(s.region_id, 0) for s in sources], np.int64)
        said = sound & (newest.times == 1) & (generation[newest.source] <= reached[newest.source])
        covered = np.array(sorted(covered_fragments(index)), np.int64)
        uncovered = said & ~np.isin(newest.fragment, covered)
        if uncovered.any():
            fragments = np.unique(newest.fragment[uncovered])
            yield Finding.of(
                "catchup-unproven",
                index.name,
                f"{int(uncovered.sum())} rows in {len(fragments)} fragments are not covered",
            )
