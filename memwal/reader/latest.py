"""Newest row of each key over several generations (spec: LSM Tree Merging Read)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.base_table.snapshot import lance_errors
from memwal.format.paths import TOMBSTONE
from memwal.lsm.key_matches import newest_row_positions
from memwal.reader.sources.cache import LruCache
from memwal.reader.sources.generation import GenerationSource
from memwal.reader.sources.narrow_columns import layout_of, read_ahead, read_columns
from memwal.region.rows import key_column
from memwal.util.arrays import Addresses, Mask, nbytes_of
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
class NewestRows:
    """The newest row of each key over several generations."""

    # Each key that occurs, once: the base table's rows of these keys are outdated. None in a table
    # without a primary key, where no row replaces another.
    keys: pa.Array
    # Position of the generation that has the newest row of each key, ascending; without a primary
    # key, of every row.
    source: npt.NDArray[np.int64]
    addresses: npt.NDArray[np.uint64]  # Address of that row in its generation.
    deleted: Mask  # Whether that row is a tombstone.

    def live_addresses(self, source: int) -> Addresses:
        """Return the row addresses, ascending, of the live rows of one generation."""
        positions = self.positions_of(source)
        addresses, deleted = self.addresses[positions], self.deleted[positions]
        live = addresses[~deleted] if deleted.any() else addresses
        # They mostly are in order.
        return live if (live[:-1] <= live[1:]).all() else np.sort(live)

    def keys_at(self, source: int, addresses: Addresses) -> pa.Array:
        """Return the keys of some newest rows of one generation, by their addresses."""
        positions = self.positions_of(source)
        own = self.addresses[positions]
        order = np.argsort(own)
        at = order[np.searchsorted(own, addresses, sorter=order)]
        return self.keys.take(pa.array(at + positions.start))

    def only(self, keys: pa.Array) -> NewestRows:
        """Return the same keys, with all rows deleted except those of the given keys."""
        others = pc.invert(pc.is_in(self.keys, value_set=keys))
        return replace(self, deleted=self.deleted | others.to_numpy(zero_copy_only=False))

    def positions_of(self, source: int) -> slice:
        """Return where the keys are whose newest row one generation has."""
        first, last = np.searchsorted(self.source, [source, source + 1])
        return slice(int(first), int(last))


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
    """Find the newest row of each key; ``parts`` are by the positions of their generations."""
    keys = pa.concat_arrays([pa.array([], key_type), *(part.keys for part in parts.values())])
    counts = [len(part.keys) for part in parts.values()]
    source = np.repeat(np.fromiter(parts, np.int64, len(parts)), counts)
    addresses = np.concatenate([np.empty(0, np.uint64), *(p.addresses for p in parts.values())])
    deleted = np.concatenate([np.empty(0, np.bool_), *(p.deleted for p in parts.values())])
    newest = newest_row_positions(keys)
    if len(newest) < len(keys):
        keys = keys.take(pa.array(newest))
        source, addresses, deleted = source[newest], addresses[newest], deleted[newest]
    return NewestRows(
        keys.slice(0, 0) if pt.is_null(key_type) else keys, source, addresses, deleted
    )


def read_all_keys(
    generations: Sequence[GenerationSource], primary_key: Sequence[str], ahead: Sequence[str] = ()
) -> list[GenerationKeys]:
    """Read the keys of generations in parallel."""
    if len(generations) == 1:
        # To start a thread takes longer than to find the keys of a small one.
        return [read_keys(generations[0], primary_key)]
    return list(
        map_parallel(lambda source: read_keys(source, primary_key, ahead), generations, threads=8)
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
            addresses=np.arange(rows.num_rows, dtype=np.uint64),
        )
    if source.identity is None:
        return _flushed_keys(source, primary_key)
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
_newest_rows: LruCache[NewestRows] = LruCache(128 << 20, nbytes_of)
