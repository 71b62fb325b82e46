"""The lowest and the highest key of each fragment, for merges without an index on the key.

A small merge that reads the keys of all fragments stores their bounds, in one object beside the
files of divided merges. Later merges read the fragments in whose bounds their keys may lie, and
those that have no bounds yet.

Bounds are stored by a hash of what they depend on: the files of a fragment, which never change, and
its key columns. They are those of all its rows, deleted ones too, and hold in each version and
branch, whatever is deleted or restored. An object that is torn or damaged counts as absent.

What a process that pauses, dies or repeats does: bounds are stored before the commit, and do not
depend on it. A merge that dies before it stores them leaves none, and the next one reads the same
keys. One that pauses replaces bounds that another merge stored since: they hold, and the fragments
that they leave out are read again. The collector deletes an object that no merge has replaced for
``orphan_min_age``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.base_table.snapshot import BaseTable
from memwal.errors import ObjectNotFoundError
from memwal.jobs.merge.run_files import MERGES_DIR, encode_rows
from memwal.lsm.indexes.btree_pages import PageRanges, pages_in_range
from memwal.lsm.key_matches import match_keys
from memwal.reader.base_rows import scan_in_groups, scan_keys
from memwal.reader.latest import ROW_ADDRESS
from memwal.reader.row_set import ROW_ID
from memwal.reader.sources.snapshot import fragments_of
from memwal.region.rows import key_column
from memwal.storage.location import TableLocation
from memwal.util.arrays import Positions, RowIds

logger = logging.getLogger(__name__)

_PATH: Final = f"{MERGES_DIR}/key-bounds.arrow"
_DIGEST_BYTES: Final = 16
# A fragment with a longer key at either end is read by every merge.
_MAX_KEY_BYTES: Final = 256
_OFFSET_BITS: Final = np.uint64(32)
# The lowest and the highest key of a fragment.
_Ends = tuple[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class KeyBounds:
    """Bounds that are known of the fragments of a version."""

    base: BaseTable
    hashes: Mapping[int, bytes]  # of each fragment
    stored: pa.Table  # columns hash, low and high

    @classmethod
    def read(cls, base: BaseTable, key_type: pa.DataType) -> KeyBounds:
        """Read the bounds of keys of a type; none if the object is absent, torn or damaged."""
        ids = base.field_ids()
        columns = repr([(ids[name], str(key_type)) for name in base.primary_key]).encode()
        hashes = {
            number: blake2b(columns + state.files, digest_size=_DIGEST_BYTES).digest()
            for number, state in fragments_of(base).states.items()
        }
        schema = pa.schema([("hash", pa.binary()), ("low", key_type), ("high", key_type)])
        stored = _read_stored(base.location)
        if stored is None or stored.schema != schema:
            stored = schema.empty_table()
        return cls(base, hashes, stored.filter(pc.is_in(stored["hash"], pa.array(hashes.values()))))

    def divide(
        self, keys: pa.Array, fragments: Sequence[lance.LanceFragment]
    ) -> tuple[list[lance.LanceFragment], list[lance.LanceFragment]]:
        """Return the fragments whose bounds are not known, and the others that may have a key."""
        places = pc.index_in(
            pa.array([self.hashes[part.fragment_id] for part in fragments], pa.binary()),
            value_set=self.stored["hash"],
        )
        unknown = [part for part, at in zip(fragments, places, strict=True) if not at.is_valid]
        known = [part for part, at in zip(fragments, places, strict=True) if at.is_valid]
        low, high = (self.stored[name].take(places.drop_null()) for name in ("low", "high"))
        numbers = pa.array(range(len(known)), pa.int64())
        ranges = PageRanges(pa.table({"min": low, "max": high, "page_idx": numbers}), 0)
        return unknown, [known[at] for at in pages_in_range(ranges, keys)]

    def scan(
        self,
        keys: pa.Array,
        unknown: Sequence[lance.LanceFragment],
        possible: Sequence[lance.LanceFragment],
    ) -> tuple[RowIds, Positions]:
        """Return address and position of keys in fragments; store the bounds of the unknown."""
        found = scan_keys(self.base, keys, possible, by=ROW_ADDRESS)
        if not unknown:
            return found
        ends: dict[int, _Ends] = {}
        new = match_keys(keys, self._noting(unknown, ends))
        self._store(ends)
        return np.concatenate([found[0], new[0]]), np.concatenate([found[1], new[1]])

    def _store(self, ends: Mapping[int, _Ends]) -> None:
        """Store the bounds of some fragments beside the known bounds."""
        rows = [
            (self.hashes[number], low, high)
            for number, (low, high) in ends.items()
            if _is_short(low) and _is_short(high)
        ]
        if rows:
            columns = zip(zip(*rows, strict=True), self.stored.schema.types, strict=True)
            new = pa.table(
                [pa.array(values, data_type) for values, data_type in columns],
                schema=self.stored.schema,
            )
            _write_stored(self.base.location, pa.concat_tables([self.stored, new]))

    def _noting(
        self, fragments: Sequence[lance.LanceFragment], found: dict[int, _Ends]
    ) -> Iterator[tuple[pa.Array, RowIds]]:
        """Yield keys and addresses of live rows; ``found`` gets the bounds of the fragments."""
        numbers = np.array([fragment.fragment_id for fragment in fragments], np.uint64)
        ends = np.cumsum([fragment.physical_rows for fragment in fragments])
        pieces = scan_in_groups(
            self.base.dataset,
            self.base.primary_key,
            with_row_id=True,
            include_deleted_rows=True,
            scan_in_order=True,
            fragments=list(fragments),
        )
        is_ordered = True
        start = 0
        for piece in pieces:
            keys = key_column(piece, self.base.primary_key)
            # Null for a deleted row, otherwise the address: the table has no stable row ids.
            ids = piece.column(ROW_ID).combine_chunks()
            stop = start + len(keys)
            cuts = [start, *ends[(ends > start) & (ends < stop)].tolist(), stop]
            for low, high in pairwise(cuts):
                number = numbers[np.searchsorted(ends, low, "right")]
                own = slice(low - start, high - start)
                live = ids[own].drop_null().to_numpy()
                is_ordered &= bool((live >> _OFFSET_BITS == number).all())
                _widen(found, int(number), pc.min_max(keys[own]))
            start = stop
            yield keys.filter(ids.is_valid()), ids.drop_null().to_numpy()
        if not is_ordered or start != ends[-1]:
            # Lance returned other rows than the fragments have, or in another order.
            logger.warning("the bounds of the keys of %s are not stored", self.base.location)
            found.clear()


def _widen(found: dict[int, _Ends], number: int, ends: pa.StructScalar) -> None:
    """Include the lowest and the highest of some keys, if any, in the bounds of a fragment."""
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is not None:
        before = found.get(number, (low, high))
        found[number] = (min(before[0], low), max(before[1], high))


def _is_short(end: Any) -> bool:
    return not isinstance(end, str | bytes) or len(end) <= _MAX_KEY_BYTES


def _read_stored(location: TableLocation) -> pa.Table | None:
    try:
        data = location.store.get(_PATH)
    except ObjectNotFoundError:
        return None
    digest, stream = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if blake2b(stream, digest_size=_DIGEST_BYTES).digest() != digest:
        logger.warning("%s of %s is damaged; reading all keys", _PATH, location)
        return None
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_all()


def _write_stored(location: TableLocation, bounds: pa.Table) -> None:
    stream = encode_rows(bounds).to_pybytes()
    digest = blake2b(stream, digest_size=_DIGEST_BYTES).digest()
    location.store_without_fsync.put(_PATH, digest + stream)
