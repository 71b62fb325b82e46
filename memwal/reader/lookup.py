"""Point lookup: the newest row of each of many keys (spec: Point Lookup).

A key is looked up only in the regions to which it can belong, as far as the key determines them.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.base_table.blobs import blob_names, external_uris, is_blob, with_values
from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format.bloom import hash_keys
from memwal.format.paths import TOMBSTONE
from memwal.format.region_manifest import RegionManifest
from memwal.format.values import move_dictionary_nulls
from memwal.lsm.indexes.unusable import unusable_indexes
from memwal.lsm.key_matches import newest_row_positions
from memwal.reader.base_rows import addresses_in_pages, key_predicate, rows_of_keys
from memwal.reader.latest import ROW_ADDRESS, find_newest
from memwal.reader.row_set import read_rows
from memwal.reader.scan import output_schema
from memwal.reader.sources.cache import LruCache, version_key
from memwal.reader.sources.generation import (
    GenerationSource,
    ReadSources,
    described,
    write_in_memory,
)
from memwal.reader.sources.key_index import key_positions, might_hold, might_hold_if_read
from memwal.reader.sources.narrow_columns import layout_of, take_stored
from memwal.reader.sources.pruning import key_routing
from memwal.reader.unreadable_indexes import scan_table
from memwal.region.rows import key_column
from memwal.util.arrays import Mask, Positions, RowIds
from memwal.util.concurrency import run_all

logger = logging.getLogger(__name__)

# More keys than this are not put into one predicate.
_MAX_PREDICATE_KEYS: Final = 5_000
# Up to this many rows are taken one by one.
_MAX_TAKEN_ROWS: Final = 100


@dataclass(frozen=True, slots=True, eq=False)
class _WantedKeys:
    """Keys of a lookup."""

    columns: pa.Table  # Key columns in key order, in one chunk each.
    encoded: pa.Array  # The same keys as one value each.
    hashes: npt.NDArray[np.uint64]  # For the Bloom filters of generations.

    def take(self, positions: Positions) -> _WantedKeys:
        """Return the keys at some positions."""
        if len(positions) == len(self.encoded):
            return self
        at = pa.array(positions)
        return _WantedKeys(
            self.columns.take(at).combine_chunks(), self.encoded.take(at), self.hashes[positions]
        )


def lookup_rows(
    sources: ReadSources,
    keys: pa.Table,
    *,
    columns: Sequence[str] | None = None,
    blob_values: bool = False,
) -> pa.Table:
    """Look up the rows of keys (spec: Point Lookup); a repeated key has one row in the result.

    ``keys`` has the key columns, in the table's types and without nulls. After ObjectNotFoundError
    (a generation, or the version of the base table, was collected during the lookup) the caller
    opens the sources again and repeats the lookup. With ``blob_values``, blobs have the form that
    is written.
    """
    base = sources.base
    wanted = _columns_of(base, columns, blob_values=blob_values)
    names, blobs = wanted.names, wanted.blobs
    with_address = blob_values and blobs
    encoded, hits = _find(sources, keys, [*names, ROW_ADDRESS] if with_address else names)
    parts = []
    with lance_errors(f"looking up rows of {base.location}"):
        for hit in hits:
            rows = hit.rows
            if blobs and hit.is_in_memory and not blob_values:
                rows = described(rows.select(names))
            elif with_address and not hit.is_in_memory:
                rows = with_values(hit.dataset(base), rows, wanted.written)
            parts.append(wanted.in_types(rows))
    rows = pa.concat_tables(parts or [wanted.read.empty_table()])
    if len(encoded) > 1 and parts:
        place = pc.index_in(key_column(rows, base.primary_key), value_set=encoded)
        rows = rows.take(pc.sort_indices(place))
    return rows.combine_chunks().select(wanted.returned)


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """Columns of a lookup in a version of the base table."""

    returned: list[str]
    names: list[str]  # Those returned, and the key.
    written: pa.Schema  # Of ``names``, as rows are written.
    read: pa.Schema  # Of ``names``, as the result has them.
    blobs: list[str]
    has_dictionaries: bool

    def in_types(self, rows: pa.Table) -> pa.Table:
        """Return the columns of rows of a source, in the types of the result."""
        columns = [rows.column(name) for name in self.names]
        if self.has_dictionaries:
            columns = [move_dictionary_nulls(column) for column in columns]
        return pa.Table.from_arrays(columns, schema=self.read)


def _columns_of(base: BaseTable, columns: Sequence[str] | None, *, blob_values: bool) -> _Columns:
    """Return the columns of a lookup; found once for each version."""

    def find() -> _Columns:
        returned = output_schema(base, columns).names
        names = list(dict.fromkeys([*returned, *base.primary_key]))
        written = pa.schema([base.schema.field(name) for name in names])
        blobs = blob_names(written)
        read = output_schema(base, names) if blobs and not blob_values else written
        has_dictionaries = any(map(pt.is_dictionary, read.types))
        return _Columns(returned, names, written, read, blobs, has_dictionaries)

    chosen = None if columns is None else tuple(columns)
    return _columns.get((version_key(base), chosen, blob_values), find)


_columns: LruCache[_Columns] = LruCache(64)


def open_blobs(sources: ReadSources, keys: pa.Table, column: str) -> list[lance.BlobFile | None]:
    """Open the blob of each key; None if it is null, or there is no row of the key.

    ``keys`` and errors are as for :func:`lookup_rows`.
    """
    base = sources.base
    output_schema(base, [column])
    if not is_blob(base.schema.field(column)):
        raise InvalidInputError(
            f"column {column} has no blobs; read it by lookup() or scan(), blob columns are: "
            f"{', '.join(blob_names(base.schema)) or 'none'}"
        )
    encoded, hits = _find(sources, keys, [*base.primary_key, column, ROW_ADDRESS])
    given = key_column(keys.select(list(base.primary_key)), base.primary_key)
    wanted = pc.index_in(given, value_set=encoded).to_numpy()
    files: list[lance.BlobFile | None] = [None] * len(wanted)
    with lance_errors(f"opening blobs of {base.location}"):
        for hit in hits:
            if hit.is_in_memory:
                dataset = write_in_memory(hit.rows.select([column]))
                addresses = np.arange(hit.rows.num_rows)
            else:
                dataset, addresses = hit.dataset(base), hit.rows.column(ROW_ADDRESS).to_numpy()
            row_of = np.full(len(encoded), -1)
            own = pc.index_in(key_column(hit.rows, base.primary_key), value_set=encoded)
            row_of[own.to_numpy()] = np.arange(len(own))
            # A key that is given twice gets two files, each with a place of its own.
            at = np.flatnonzero(row_of[wanted] >= 0)
            if len(at):
                rows = row_of[wanted[at]]
                chosen = addresses[rows].tolist()
                try:
                    found = dataset.take_blobs(column, addresses=chosen)
                except (OSError, ValueError):
                    uris = external_uris(hit.rows, column, dataset)
                    _name_bad_blob(dataset, column, chosen, keys.take(at), uris.take(rows))
                    raise
                for place, file in zip(at.tolist(), found, strict=True):
                    files[place] = file
    return files


def _name_bad_blob(
    dataset: lance.LanceDataset,
    column: str,
    addresses: Sequence[int],
    keys: pa.Table,
    uris: pa.Array,
) -> None:
    """Raise the error of the first blob that cannot be opened, with its key and address.

    Lance names neither. Does nothing if all can be opened now.
    """
    for address, key, uri in zip(addresses, keys.to_pylist(), uris.to_pylist(), strict=True):
        external = "" if uri is None else f" at {uri}"
        with lance_errors(f"opening the blob{external} in {column} of the row {key}"):
            dataset.take_blobs(column, addresses=[address])


def _find(
    sources: ReadSources, keys: pa.Table, names: Sequence[str]
) -> tuple[pa.Array, list[_FoundKeys]]:
    """Return the distinct keys, one value each, and their rows by the source that has them."""
    base = sources.base
    keys = keys.select(list(base.primary_key))
    encoded = key_column(keys, base.primary_key)
    if not len(encoded):
        return encoded, []
    if len(encoded) > 1:
        distinct = pa.array(newest_row_positions(encoded))
        keys, encoded = keys.take(distinct), encoded.take(distinct)
    columns_of_key = keys.combine_chunks()
    with lance_errors(f"looking up rows of {base.location}"):
        if sources.generations:
            hashes = hash_keys(columns_of_key.columns)
            hits = _from_all(sources, _WantedKeys(columns_of_key, encoded, hashes), names)
        else:
            rows = _from_base(base, columns_of_key, encoded, names)
            hits = [_FoundKeys(None, np.arange(len(encoded)), rows)]
    return encoded, hits


def _positions_by_region(sources: ReadSources, keys: pa.Table) -> dict[UUID, Positions]:
    """Return the positions of the keys that each region can have, by its values; if absent, all."""
    positions: dict[UUID, Positions] = {}
    by_spec: dict[int, list[RegionManifest]] = {}
    for manifest in sources.plan.snapshot.manifests.values():
        by_spec.setdefault(manifest.spec_id, []).append(manifest)
    for spec_id, manifests in by_spec.items():
        routing = key_routing(sources.base, spec_id)
        if routing is None:
            continue
        # No column of a table has an empty name.
        numbered = keys.append_column("", pa.array(np.arange(keys.num_rows)))
        routed = {
            frozenset(assignment.field_values): rows.column(rows.num_columns - 1).to_numpy()
            for assignment, rows in routing.router.route(numbered)
        }
        field_ids = {field.field_id for field in routing.spec.fields}
        for manifest in manifests:
            values = frozenset(manifest.region_fields)
            if {field_id for field_id, _ in values} != field_ids:
                # A null, or a region that another client made without values.
                continue
            positions[manifest.region_id] = routed.get(values, np.empty(0, np.int64))
    return positions


def _from_all(sources: ReadSources, keys: _WantedKeys, names: Sequence[str]) -> list[_FoundKeys]:
    """Read rows from the generations, and keys that none can have from the base table."""
    base = sources.base
    regions: dict[UUID, list[GenerationSource]] = {}
    for source in reversed(sources.generations):
        regions.setdefault(source.region_id, []).append(source)
    positions = _positions_by_region(sources, keys.columns)
    everywhere = np.arange(len(keys.encoded))
    searches = [
        _RegionSearch(base, generations, keys, positions.get(region_id, everywhere))
        for region_id, generations in regions.items()
        if len(positions.get(region_id, everywhere))
    ]
    undecided = np.zeros(len(keys.encoded), np.bool_)
    for search in searches:
        undecided |= search.candidates

    def look_up(at: Positions) -> list[_FoundKeys]:
        chosen = keys.take(at)
        return [_FoundKeys(None, at, _from_base(base, chosen.columns, chosen.encoded, names))]

    absent = np.flatnonzero(~undecided)
    # The longest part first.
    tasks = [functools.partial(look_up, absent)] if len(absent) else []
    tasks += [
        functools.partial(search.run, keys, names) for search in searches if search.candidates.any()
    ]
    hits = list(itertools.chain.from_iterable(run_all(tasks)))
    for hit in hits:
        undecided[hit.at] = False
    if undecided.any():
        # Filters let them pass in vain.
        hits += look_up(np.flatnonzero(undecided))
    return _newest_of_regions(sources, hits, keys) if len(searches) > 1 else hits


@dataclass(frozen=True, slots=True, eq=False)
class _FoundKeys:
    """Keys that a source has, and the rows of the keys that it did not delete."""

    source: GenerationSource | None  # None for the base table, for keys that no generation has.
    at: Positions
    rows: pa.Table

    @property
    def is_in_memory(self) -> bool:
        """Return whether the rows are those of a MemTable, as they were written."""
        return self.source is not None and self.source.snapshot is not None

    def dataset(self, base: BaseTable) -> lance.LanceDataset:
        """Return the data set that has the rows."""
        return base.dataset if self.source is None else self.source.dataset


def _newest_of_regions(
    sources: ReadSources, hits: Sequence[_FoundKeys], keys: _WantedKeys
) -> list[_FoundKeys]:
    """Drop rows that another region, made by another client, has in a newer source."""
    order = {id(source): number for number, source in enumerate(sources.generations)}
    newest = np.full(len(keys.encoded), -1)
    numbers = [-1 if hit.source is None else order[id(hit.source)] for hit in hits]
    for number, hit in zip(numbers, hits, strict=True):
        newest[hit.at] = np.maximum(newest[hit.at], number)
    kept = []
    for number, hit in zip(numbers, hits, strict=True):
        rows = hit.rows
        stale = hit.at[newest[hit.at] > number]
        if len(stale):
            of_rows = key_column(rows, sources.base.primary_key)
            rows = rows.filter(
                pc.invert(pc.is_in(of_rows, value_set=keys.encoded.take(pa.array(stale))))
            )
        kept.append(_FoundKeys(hit.source, hit.at, rows))
    return kept


class _RegionSearch:
    """A search of a region's generations, each for the keys that its filter does not rule out."""

    def __init__(
        self,
        base: BaseTable,
        generations: Sequence[GenerationSource],
        keys: _WantedKeys,
        positions: Positions,
    ) -> None:
        """Test the keys at some positions by the filters that have been read."""
        self.base = base
        # Newest first, with a mask of the keys that each may have; None if its filter is not read.
        self.generations: list[tuple[GenerationSource, Mask | None]] = []
        asked = keys.hashes[positions]
        self.candidates = np.zeros(len(keys.encoded), np.bool_)  # Keys that any of them may have.
        for source in generations:
            folder = source.folder
            might = None if folder is None else might_hold_if_read(base, folder, asked)
            if might is None:
                self.candidates[positions] = True
                self.generations.append((source, None))
            elif might.any():
                mask = np.zeros(len(keys.encoded), np.bool_)
                mask[positions] = might
                self.candidates |= mask
                self.generations.append((source, mask))

    def run(self, keys: _WantedKeys, names: Sequence[str]) -> list[_FoundKeys]:
        """Return the keys that each generation has and no newer one, deleted ones too."""
        remaining = self.candidates.copy()
        hits: list[_FoundKeys] = []
        for source, mask in self.generations:
            possible = np.flatnonzero(remaining if mask is None else remaining & mask)
            if mask is None and source.folder is not None and len(possible):
                possible = possible[might_hold(self.base, source.folder, keys.hashes[possible])]
            if not len(possible):
                continue
            hit = self._read(source, keys, possible, names)
            if hit is not None:
                hits.append(hit)
                remaining[hit.at] = False
        return hits

    def _read(
        self, source: GenerationSource, keys: _WantedKeys, asked: Positions, names: Sequence[str]
    ) -> _FoundKeys | None:
        """Return the keys at ``asked`` that a generation has, with their rows; or None."""
        columns = [*names, TOMBSTONE]
        if source.snapshot is not None:
            chosen = keys.take(asked).columns
            row_numbers = source.snapshot.lookup(
                [key_column(chosen, [name]) for name in self.base.primary_key]
            )
            at = np.flatnonzero(row_numbers >= 0)
            stored = [name for name in columns if name != ROW_ADDRESS]
            rows = source.snapshot.view.take(row_numbers[at], columns=stored) if len(at) else None
        else:
            encoded = keys.encoded.take(pa.array(asked))
            at, addresses = _addresses(self.base, source, encoded)
            rows = None
            if len(at):
                rows = _take_generation(self.base, source, addresses, columns)
                # Nothing else verifies the sidecar.
                wanted = encoded.take(pa.array(at))
                found = pc.index_in(key_column(rows, self.base.primary_key), value_set=wanted)
                if pc.count_distinct(found).as_py() != len(at) or len(found) != len(at):
                    raise _wrong_index(source)
        if rows is None:
            return None
        deleted = rows.column(TOMBSTONE)
        if pc.any(deleted).as_py():
            rows = rows.filter(pc.invert(pc.fill_null(deleted, False)))
        return _FoundKeys(source, asked[at], rows)


def _take_generation(
    base: BaseTable, source: GenerationSource, addresses: RowIds, names: Sequence[str]
) -> pa.Table:
    if len(addresses) > _MAX_TAKEN_ROWS:
        return _take_rows(source.dataset, addresses, names)
    schema = base.schema.append(pa.field(TOMBSTONE, pa.bool_()))
    return take_stored(source, schema, names, addresses)


def _wrong_index(source: GenerationSource) -> CorruptDataError:
    return CorruptDataError(
        f"the key index of {source.folder} leads to rows of other keys; memwal verify --repair "
        "writes it anew"
    )


def _addresses(
    base: BaseTable, source: GenerationSource, encoded: pa.Array
) -> tuple[Positions, RowIds]:
    """Return the keys that a flushed generation has, and the addresses of their newest rows."""
    layout = layout_of(source)
    if source.folder is not None and not layout.has_deletions:
        row_numbers = None
        try:
            row_numbers = key_positions(base.location, source.folder, encoded)
        except CorruptDataError as error:
            logger.warning(
                "the rows of %s are read without its key index: %s", source.folder, error
            )
        if row_numbers is not None:
            exists = row_numbers >= 0
            if row_numbers.max(initial=-1) >= layout.rows:
                raise _wrong_index(source)
            return np.flatnonzero(exists), layout.addresses_at(row_numbers[exists])
    # Without a sidecar, all keys are read; those of one generation are bounded by the size of a
    # MemTable.
    newest = find_newest([source], base.primary_key, encoded.type)
    position = pc.index_in(encoded, value_set=newest.keys)
    exists = position.is_valid().to_numpy(zero_copy_only=False)
    return np.flatnonzero(exists), newest.addresses[position.drop_null().to_numpy()]


def _from_base(
    base: BaseTable, keys: pa.Table, encoded: pa.Array, names: Sequence[str]
) -> pa.Table:
    """Read the rows of keys, given as columns and as one value each."""
    if len(encoded) > _MAX_PREDICATE_KEYS or unusable_indexes(base):
        row_ids, _ = rows_of_keys(base, encoded)
        return _take_rows(base.dataset, row_ids, names)
    addresses = addresses_in_pages(base, encoded)
    if addresses is None:
        rows = scan_table(base.dataset, columns=names, filter=key_predicate(keys))
    else:
        rows = _take_rows(base.dataset, addresses, names)
    found = key_column(rows, base.primary_key)
    if found.equals(encoded):
        return rows
    # For a composite key, every combination of the columns passes the predicate.
    wanted = pc.is_in(found, value_set=encoded)
    return rows if wanted.true_count == len(wanted) else rows.filter(wanted)


def _take_rows(dataset: lance.LanceDataset, rows: RowIds, names: Sequence[str]) -> pa.Table:
    """Read rows by their ids; their order is not defined."""
    if len(rows) <= _MAX_TAKEN_ROWS:
        return dataset._take_rows(rows.tolist(), columns=list(names))
    batches = list(read_rows(dataset, rows, columns=names))
    return pa.Table.from_batches(batches).select(list(names))
