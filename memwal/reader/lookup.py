"""Point lookup: the newest row of each of many keys (spec: Point Lookup).

A key goes only to the regions that it can belong to, as far as the key tells.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.errors import CorruptDataError
from memwal.format.paths import TOMBSTONE
from memwal.format.region_manifest import RegionManifest
from memwal.reader.base_rows import key_predicate, rows_of_keys
from memwal.reader.key_index import key_positions, might_hold
from memwal.reader.latest import find_newest
from memwal.reader.merged_scan import project
from memwal.reader.row_set import RowIds, read_rows
from memwal.reader.scan import output_schema
from memwal.reader.sources.collect import ReadSources
from memwal.reader.sources.generation import GenerationSource
from memwal.reader.sources.key_routing import is_routed_by_key, spec_of
from memwal.region.router import Router
from memwal.region.rows import key_column, newest_rows
from memwal.region.spec import RegionSpec
from memwal.util.concurrency import run_all

if TYPE_CHECKING:
    import lance

_NUMBER = "key"

Positions = npt.NDArray[np.int64]


def regions_of_keys(sources: ReadSources, keys: pa.Table) -> dict[UUID, Positions]:
    """Positions of the keys that can be in each region; a region that is absent may have any.

    A region is known by its values and not by its id, which another client may have chosen.
    """
    found: dict[UUID, Positions] = {}
    by_spec: dict[int, list[RegionManifest]] = {}
    for manifest in sources.plan.snapshot.manifests.values():
        by_spec.setdefault(manifest.spec_id, []).append(manifest)
    for spec_id, manifests in by_spec.items():
        spec = spec_of(sources.base, spec_id)
        if spec is None or not is_routed_by_key(spec, sources.base):
            continue
        places = _by_values(spec, sources.base, keys)
        names = {field.field_id for field in spec.fields}
        for manifest in manifests:
            values = frozenset(manifest.region_fields)
            if {name for name, _ in values} != names:
                # A null, or a region that another client made without values.
                continue
            found[manifest.region_id] = places.get(values, np.empty(0, np.int64))
    return found


def _by_values(
    spec: RegionSpec, base: BaseTable, keys: pa.Table
) -> dict[frozenset[tuple[str, bytes]], Positions]:
    numbered = keys.append_column(_NUMBER, pa.array(np.arange(keys.num_rows)))
    return {
        frozenset(assignment.field_values): rows.column(rows.num_columns - 1).to_numpy()
        for assignment, rows in Router(spec, base.schema).route(numbered)
    }


logger = logging.getLogger(__name__)


# More keys than this are not put into one predicate.
_MAX_PREDICATE_KEYS = 5_000
# So many rows are read one by one.
_FEW_ROWS = 100


def lookup_rows(
    sources: ReadSources, keys: pa.Table, *, columns: Sequence[str] | None = None
) -> pa.Table:
    """Rows of the given keys (spec: Point Lookup).

    Of each region, only generations that the key columns do not rule out are asked, the newest
    first, and each only for the keys that no newer one has. A generation says by its Bloom filter
    which keys it does not have, and by a few pages of its keys where the others stand, for all
    keys at once.

    Parameters
    ----------
    sources : ReadSources
        See :func:`memwal.reader.sources.collect.open_sources`. It is to be collected, and this
        to be run, again when it raises ObjectNotFoundError.
    keys : pyarrow.Table
        The key columns, in the table's types and without nulls.
    columns : sequence of str, optional
        Columns to return; all by default.

    Returns
    -------
    pyarrow.Table
        One row per key that exists, in the order of ``keys``; a key that is given twice is
        answered once.

    Raises
    ------
    ObjectNotFoundError
        A generation, or the version of the base table, was collected meanwhile.
    """
    base = sources.base
    schema = output_schema(base, columns)
    keys = keys.select(list(base.primary_key))
    wanted = key_column(keys, base.primary_key)
    distinct = pa.array(newest_rows(wanted))
    asked = _Asked(keys.take(distinct).combine_chunks(), wanted.take(distinct))
    names = _with_keys(schema, base.primary_key)
    with lance_errors(f"looking up rows of {base.location}"):
        parts, known = _from_regions(sources, asked, names)
        rest = asked.of(np.flatnonzero(~known))
        if len(rest.encoded):
            parts.append(_from_base(base, rest, names))
    if not parts:
        return schema.empty_table()
    found = pa.concat_tables([_in_base_types(part.select(names), base) for part in parts])
    place = pc.index_in(key_column(found, base.primary_key), value_set=asked.encoded)
    rows = found.take(pc.sort_indices(place)).combine_chunks()
    return pa.Table.from_batches([project(batch, schema) for batch in rows.to_batches()], schema)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """Keys that are looked up.

    Attributes
    ----------
    columns : pyarrow.Table
        Their columns in key order, in one chunk each.
    encoded : pyarrow.Array
        The same as one value each.
    """

    columns: pa.Table
    encoded: pa.Array

    def of(self, positions: Positions) -> _Asked:
        """Some of them."""
        if len(positions) == len(self.encoded):
            return self
        at = pa.array(positions)
        return _Asked(self.columns.take(at).combine_chunks(), self.encoded.take(at))


def _from_regions(
    sources: ReadSources, asked: _Asked, names: Sequence[str]
) -> tuple[list[pa.Table], np.ndarray[Any, np.dtype[np.bool_]]]:
    """Rows that generations have, and which keys they know, be it as deleted."""
    regions: dict[UUID, list[GenerationSource]] = {}
    for source in reversed(sources.generations):
        regions.setdefault(source.region_id, []).append(source)
    owned = regions_of_keys(sources, asked.columns)
    found = run_all(
        [
            functools.partial(
                _from_region, sources.base, generations, asked, owned.get(region_id), names
            )
            for region_id, generations in regions.items()
        ]
    )
    known = np.zeros(len(asked.encoded), np.bool_)
    for _, mine in found:
        known[mine] = True
    return [part for parts, _ in found for part in parts], known


def _from_region(
    base: BaseTable,
    generations: Sequence[GenerationSource],
    asked: _Asked,
    mine: Positions | None,
    names: Sequence[str],
) -> tuple[list[pa.Table], Positions]:
    """Rows that the generations of a region have, newest generation first."""
    left = np.arange(len(asked.encoded)) if mine is None else mine
    parts, known = [], []
    for source in generations:
        if not len(left):
            break
        at, rows = _in_generation(base, source, asked.of(left), names)
        if rows is not None:
            parts.append(rows)
        known.append(left[at])
        left = np.delete(left, at)
    return parts, np.concatenate(known) if known else np.empty(0, np.int64)


def _in_generation(
    base: BaseTable, source: GenerationSource, asked: _Asked, names: Sequence[str]
) -> tuple[Positions, pa.Table | None]:
    """Which keys the generation knows, and the rows of those that it did not delete."""
    wanted = [*names, TOMBSTONE]
    if source.snapshot is not None:
        places = source.snapshot.lookup(
            [key_column(asked.columns, [name]) for name in base.primary_key]
        )
        at = np.flatnonzero(places >= 0)
        rows = source.snapshot.take(places[at], columns=wanted) if len(at) else None
    else:
        at, addresses = _addresses(base, source, asked)
        rows = _read(source.dataset, addresses, wanted) if len(at) else None
        if rows is not None:
            _check_keys(rows, asked.of(at), base, source)
    if rows is None:
        return at, None
    return at, rows.filter(pc.invert(pc.fill_null(rows.column(TOMBSTONE), False)))


def _check_keys(rows: pa.Table, asked: _Asked, base: BaseTable, source: GenerationSource) -> None:
    """Make sure that the rows are those of the keys: nothing else vouches for the sidecar."""
    found = pc.index_in(key_column(rows, base.primary_key), value_set=asked.encoded)
    if pc.count_distinct(found).as_py() != len(asked.encoded) or len(found) != len(asked.encoded):
        raise _misled(source)


def _misled(source: GenerationSource) -> CorruptDataError:
    return CorruptDataError(
        f"the key index of {source.folder} leads to rows of other keys; memwal verify --repair "
        "writes it anew"
    )


def _addresses(
    base: BaseTable, source: GenerationSource, asked: _Asked
) -> tuple[Positions, RowIds]:
    """Which keys a flushed generation has, and the addresses of their newest rows."""
    at = np.arange(len(asked.encoded))
    if source.folder is not None:
        at = np.flatnonzero(might_hold(base.location, source.folder, asked.columns))
        if not len(at):
            return at, np.empty(0, np.uint64)
        fragments = source.dataset.get_fragments()
        if not any(fragment.metadata.deletion_file for fragment in fragments):
            places = _places(base, source.folder, asked.of(at))
            if places is not None:
                here = places >= 0
                if places.max(initial=-1) >= sum(part.physical_rows for part in fragments):
                    raise _misled(source)
                return at[here], _as_addresses(fragments, places[here])
    # No sidecar tells; the keys of one generation are bounded by the size of a MemTable.
    known = find_newest([source], base.primary_key, asked.encoded.type)
    position = pc.index_in(asked.of(at).encoded, value_set=known.keys)
    here = position.is_valid().to_numpy(zero_copy_only=False)
    return at[here], known.addresses[position.drop_null().to_numpy()]


def _places(base: BaseTable, folder: str, asked: _Asked) -> Positions | None:
    """What the sidecar tells; None when there is none, or none that can be read."""
    try:
        return key_positions(base.location, folder, asked.encoded)
    except CorruptDataError as error:
        logger.warning("the rows of %s are read without its key index: %s", folder, error)
        return None


def _as_addresses(fragments: Sequence[lance.LanceFragment], rows: Positions) -> RowIds:
    """Addresses of rows by their numbers in a data set from which none was deleted."""
    starts = np.cumsum([0, *(fragment.physical_rows for fragment in fragments)])
    numbers = np.array([fragment.fragment_id for fragment in fragments], np.uint64)
    which = starts.searchsorted(rows, side="right") - 1
    offsets = (rows - starts[which]).astype(np.uint64)
    addresses: RowIds = (numbers[which] << np.uint64(32)) | offsets
    return addresses


def _from_base(base: BaseTable, keys: _Asked, names: Sequence[str]) -> pa.Table:
    if len(keys.encoded) > _MAX_PREDICATE_KEYS:
        found, _ = rows_of_keys(base, keys.encoded)
        return _read(base.dataset, found, names)
    rows = base.dataset.scanner(columns=names, filter=key_predicate(keys.columns)).to_table()
    # Of a composite key the predicate lets through every combination of the columns.
    return rows.filter(pc.is_in(key_column(rows, base.primary_key), value_set=keys.encoded))


def _read(dataset: lance.LanceDataset, rows: RowIds, names: Sequence[str]) -> pa.Table:
    """Rows by their ids, in no promised order."""
    if len(rows) <= _FEW_ROWS:
        return dataset._take_rows(rows.tolist(), columns=list(names))
    batches = list(read_rows(dataset, rows, columns=names))
    return pa.Table.from_batches(batches).select(list(names))


def _with_keys(schema: pa.Schema, primary_key: Sequence[str]) -> list[str]:
    return [*schema.names, *(key for key in primary_key if key not in schema.names)]


def _in_base_types(rows: pa.Table, base: BaseTable) -> pa.Table:
    schema = pa.schema([base.schema.field(name) for name in rows.column_names])
    return pa.Table.from_arrays(rows.columns, schema=schema)
