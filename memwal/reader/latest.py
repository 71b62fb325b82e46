"""Newest row of each key over several generations (spec: LSM Tree Merging Read)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.base_table.snapshot import lance_errors
from memwal.format.paths import TOMBSTONE
from memwal.lsm.key_matches import mark_newest_rows
from memwal.reader.sources.cache import LruCache
from memwal.reader.sources.generation import GenerationSource
from memwal.reader.sources.narrow_columns import (
    layout_of,
    read_ahead,
    read_columns,
    row_numbers,
)
from memwal.region.manifest_store import parallel_scans
from memwal.region.rows import key_column
from memwal.util.arrays import Addresses, Mask, Numbers, nbytes_of
from memwal.util.concurrency import map_parallel

ROW_ADDRESS = "_rowaddr"


@dataclass(frozen=True, slots=True)
class GenerationKeys:
    """Keys of one generation."""

    keys: pa.Array  # One per row, oldest row first.
    deleted: Mask  # Which rows are tombstones.
    addresses: npt.NDArray[np.uint64]

    def since(self, first: int) -> GenerationKeys:
        """Return the keys from a row on."""
        return GenerationKeys(self.keys[first:], self.deleted[first:], self.addresses[first:])


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows of one generation that are the newest of their keys."""

    source: int  # Position of the generation.
    addresses: Addresses  # Address of each row in the generation.
    deleted: Mask  # Whether it is a tombstone.


@dataclass(frozen=True)
class NewestRows:
    """The newest row of each key over several generations."""

    # Each key that occurs, once: the base table's rows of these keys are outdated. None in a table
    # without a primary key, where no row replaces another.
    keys: pa.Array
    # The row of each key, by ascending positions of the generations; without a primary key, every
    # row.
    rows: tuple[SourceRows, ...]

    @cached_property
    def source(self) -> Numbers:
        """Position of the generation that has each row, ascending."""
        sources = np.fromiter((part.source for part in self.rows), np.int64, len(self.rows))
        return np.repeat(sources, [len(part.addresses) for part in self.rows])

    @cached_property
    def addresses(self) -> Addresses:
        """Address of each row in its generation."""
        return np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in self.rows)])

    @cached_property
    def deleted(self) -> Mask:
        """Mask of the rows that are tombstones."""
        return np.concatenate([np.empty(0, np.bool_), *(part.deleted for part in self.rows)])

    @property
    def nbytes(self) -> int:
        """Memory in bytes, with that of the arrays over all rows, which a reader may ask for."""
        per_row = np.dtype(np.int64).itemsize + np.dtype(np.uint64).itemsize + 1
        return nbytes_of(self) + per_row * sum(len(part.addresses) for part in self.rows)

    def of(self, source: int) -> SourceRows:
        """Return the rows of one generation."""
        none = SourceRows(source, np.empty(0, np.uint64), np.empty(0, np.bool_))
        return next((part for part in self.rows if part.source == source), none)

    def live_addresses(self, source: int) -> Addresses:
        """Return the row addresses, ascending, of the live rows of one generation."""
        own = self.of(source)
        live = own.addresses[~own.deleted] if own.deleted.any() else own.addresses
        # They mostly are in order.
        return live if (live[:-1] <= live[1:]).all() else np.sort(live)

    def keys_at(self, source: int, addresses: Addresses) -> pa.Array:
        """Return the keys of some newest rows of one generation, by their addresses."""
        own = self.of(source).addresses
        order = np.argsort(own)
        at = order[np.searchsorted(own, addresses, sorter=order)]
        first = sum(len(part.addresses) for part in self.rows if part.source < source)
        return self.keys.take(pa.array(at + first))

    def only(self, keys: pa.Array) -> NewestRows:
        """Return the same keys, with all rows deleted except those of the given keys."""
        others = pc.invert(pc.is_in(self.keys, value_set=keys)).to_numpy(zero_copy_only=False)
        rows, start = [], 0
        for part in self.rows:
            end = start + len(part.deleted)
            rows.append(replace(part, deleted=part.deleted | others[start:end]))
            start = end
        return replace(self, rows=tuple(rows))


def find_newest(
    generations: Sequence[GenerationSource],
    primary_key: Sequence[str],
    key_type: pa.DataType,
    ahead: Sequence[str] = (),
) -> NewestRows:
    """Find the newest row of each key; generations are ordered oldest first within a region.

    Keys of different regions are different, so the order between regions does not matter. Without
    a primary key every row is returned. ``ahead`` are narrow columns that the caller reads next:
    of generations whose keys are read now, they are read in the same pass.
    """
    identities = tuple(source.identity for source in generations)

    def find() -> NewestRows:
        parts = read_all_keys(generations, primary_key, ahead)
        return newest_of(dict(enumerate(parts)), key_type)

    if None in identities or len(identities) <= 1:
        return find()
    # Flushed generations never change.
    return _newest_rows.get((identities, tuple(primary_key), str(key_type)), find)


def newest_of(parts: Mapping[int, GenerationKeys], key_type: pa.DataType) -> NewestRows:
    """Find the newest row of each key; ``parts`` are by ascending positions of generations."""
    keys = pa.concat_arrays([pa.array([], key_type), *(part.keys for part in parts.values())])
    is_newest = mark_newest_rows(keys)
    if not is_newest.all():
        keys = keys.filter(pa.array(is_newest))
    rows, start = [], 0
    for source, part in parts.items():
        mask = is_newest[start : start + len(part.keys)]
        start += len(part.keys)
        # Arrays of keys that are all the newest are not copied.
        own = (part.addresses, part.deleted)
        rows.append(SourceRows(source, *(own if mask.all() else (each[mask] for each in own))))
    return NewestRows(keys.slice(0, 0) if pt.is_null(key_type) else keys, tuple(rows))


def read_all_keys(
    generations: Sequence[GenerationSource], primary_key: Sequence[str], ahead: Sequence[str] = ()
) -> list[GenerationKeys]:
    """Read the keys of generations in parallel."""
    if len(generations) == 1:
        # To start a thread takes longer than to find the keys of a small one.
        return [read_keys(generations[0], primary_key)]
    return map_parallel(
        lambda source: read_keys(source, primary_key, ahead),
        generations,
        threads=parallel_scans(is_local=all(source.is_local for source in generations)),
    )


def read_keys(
    source: GenerationSource, primary_key: Sequence[str], ahead: Sequence[str] = ()
) -> GenerationKeys:
    """Read the keys of a generation; those of a flushed one never change and are cached."""
    if source.snapshot is not None:
        rows = source.snapshot.view.to_table()
        return GenerationKeys(
            keys=key_column(rows, primary_key),
            deleted=rows.column(TOMBSTONE).to_numpy(),
            addresses=row_numbers(rows.num_rows),
        )
    return _generation_keys.get(source.identity, lambda: _flushed_keys(source, primary_key, ahead))


def _flushed_keys(
    source: GenerationSource, primary_key: Sequence[str], ahead: Sequence[str] = ()
) -> GenerationKeys:
    names = [*primary_key, TOMBSTONE]
    layout = layout_of(source)
    if layout.has_deletions:
        with lance_errors(f"reading {source.identity}"):
            table = source.dataset.scanner(
                columns=names, with_row_address=True, scan_in_order=True
            ).to_table()
        addresses = table.column(ROW_ADDRESS).to_numpy()
    else:
        table = read_ahead(source, names, ahead) if ahead else None
        table = read_columns(source, names) if table is None else table
        addresses = layout.addresses()
    return GenerationKeys(
        keys=key_column(table, primary_key),
        deleted=pc.fill_null(table.column(TOMBSTONE), False).to_numpy(),
        addresses=addresses,
    )


_generation_keys: LruCache[GenerationKeys] = LruCache(256 << 20, nbytes_of)
_newest_rows: LruCache[NewestRows] = LruCache(128 << 20, lambda newest: newest.nbytes)
