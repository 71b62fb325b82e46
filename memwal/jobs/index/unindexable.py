"""Rows that an index cannot hold: found by halving, left out, recorded and reported.

Some values are stored, and then refused by the build of an index: Lance finds no partition for a
vector that is so long that its distances are infinite. One such row would keep the index behind for
ever, and with it all generations from collection. The build leaves these rows out, as Lance does by
itself with vectors that have a NaN. Scans and lookups find them; a vector search does if the query
is as far away, since it then reads the table without the index.

The rows are left out through a version of the data set that exists in memory only, in which they
are deleted. No version of the table names its deletion files. They are deleted after the build, or,
if the process dies, by the clean-up of old files.

The record of the rows is stored before the commit of their index segment. A process that dies in
between has recorded rows that the next build finds again. A record is deleted when its rows are
gone, were replaced, or their index was dropped.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import uuid4

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from lance.dataset import Index

from memwal.base_table.commit import current_spec
from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.boundary.lance_errors import first_line
from memwal.errors import CorruptDataError, InvalidInputError, MemWalError, ObjectNotFoundError
from memwal.format.lance_files import (
    DeletionFile,
    FileKind,
    encode_deleted_rows,
    with_deletion_files,
)
from memwal.jobs.job import UnindexableRow
from memwal.jobs.merge.run_files import encode_rows, read_stored
from memwal.lsm.indexes.catchup import describe_index
from memwal.lsm.indexes.maintained import MaintainedIndex, index_of
from memwal.lsm.region_places import router_in_force
from memwal.quality.report import keys_as_json
from memwal.reader.base_rows import key_predicate
from memwal.reader.latest import ROW_ADDRESS
from memwal.reader.row_set import ROW_ID
from memwal.reader.unreadable_indexes import scan_table
from memwal.region.router import Router
from memwal.region.rows import key_column

UNINDEXABLE_DIR: Final = "_memwal/unindexable"

REFUSALS: Final = (InvalidInputError, CorruptDataError)
"""Errors of a build that may be those of its rows."""

_BATCH_ROWS: Final = 8_192
_OFFSET_MASK: Final = np.uint64((1 << 32) - 1)
_FRAGMENT_BITS: Final = np.uint64(32)
_TOO_LONG: Final = "its vector is too long: distances, which are float32, would be infinite"
# Columns of a record beside the key.
_INDEX: Final = "memwal.index"
_REGION: Final = "memwal.region"
_REASON: Final = "memwal.reason"


def build_without_unindexable(
    base: BaseTable, index: MaintainedIndex, fragments: Sequence[int], cause: MemWalError
) -> Index:
    """Write a part of an index over some fragments, without the rows that it refuses.

    These rows are recorded. ``cause`` is the error of the build with them, which is raised if none
    of the rows is refused by itself.
    """
    found = _find_in_fragments(base, index, fragments)
    if found is None:
        raise cause
    _record(base, found)
    addresses = found.column(ROW_ADDRESS).to_numpy()
    numbers = addresses >> _FRAGMENT_BITS
    deletions = {
        number: _delete(base, number, addresses[numbers == number] & _OFFSET_MASK)
        for number in np.unique(numbers).tolist()
    }
    try:
        with lance_errors(f"building index {index.name} without {found.num_rows} rows"):
            view = lance.LanceDataset(
                base.location.uri,
                serialized_manifest=with_deletion_files(
                    base.stored._ds.serialized_manifest(), deletions
                ),
                **base.location.lance_arguments(),
            )
            part = index.spec.build(
                view, name=index.name, column=index.column, fragment_ids=fragments
            )
    finally:
        base.location.store.delete_many(file.key(n) for n, file in deletions.items())
    if part is None:
        raise cause
    return part


def _delete(base: BaseTable, fragment: int, rows: npt.NDArray[np.uint64]) -> DeletionFile:
    """Write a deletion file with ``rows`` of a fragment and its deleted rows."""
    opened = base.dataset.get_fragment(fragment)
    with lance_errors(f"leaving rows out of fragment {fragment} of {base.location}"):
        changed = opened.delete_rows(rows.astype(np.uint32).tolist())
    if changed is not None:
        file = changed.deletion_file
        kind = FileKind.DELETED_ROWS if file.file_type == "array" else FileKind.DELETED_BITMAP
        return DeletionFile(kind, file.read_version, file.id, file.num_deleted_rows)
    # No row is left, and Lance writes no file.
    count = int(opened.physical_rows)
    written = DeletionFile(FileKind.DELETED_ROWS, base.version, secrets.randbits(63), count)
    base.location.store.put(written.key(fragment), encode_deleted_rows(count))
    return written


def recorded_rows(base: BaseTable) -> list[UnindexableRow]:
    """Return the recorded rows that their index still cannot hold, each once.

    ``base`` is any version. Records without such a row are deleted. Costs one listing if there are
    none.
    """
    rows: dict[tuple[str, str], UnindexableRow] = {}
    infos = list(base.location.store.list(f"{UNINDEXABLE_DIR}/"))
    if infos:
        # Another build may have recorded rows that were merged after ``base`` was read.
        base = open_base(base.location)
    for info in infos:
        try:
            record = read_stored(base.location.store, info.key)
        except ObjectNotFoundError:
            # Another build has deleted it since the listing.
            continue
        left = _still_refused(base, record)
        if not left.num_rows:
            base.location.store.delete(info.key)
        names = [_INDEX, _REGION, _REASON]
        columns = [left.column(name).to_pylist() for name in names]
        keys = keys_as_json(left.select(_names(base)))
        for key, index, region, reason in zip(keys, *columns, strict=True):
            row = UnindexableRow(index=index, key=key, region_id=region, reason=reason)
            rows[index, str(key)] = row
    return list(rows.values())


def _find_in_fragments(
    base: BaseTable, index: MaintainedIndex, fragments: Sequence[int]
) -> pa.Table | None:
    """Return address, key, region and reason of the rows that an index refuses; None if none."""
    router: Router | None = None
    region_columns: Sequence[str] = ()
    if base.details.region_specs:
        router, region_columns = router_in_force(base), current_spec(base)[1].columns
    # Otherwise regions are named by hand, and a row does not tell which was its own.
    top = index.column.partition(".")[0]
    columns = list(dict.fromkeys([*base.primary_key, *region_columns, top]))
    with lance_errors(f"reading the rows of index {index.name}"):
        batches = base.dataset.scanner(
            columns=columns,
            fragments=[base.dataset.get_fragment(number) for number in fragments],
            with_row_address=True,
            with_row_id=not base.primary_key,
            batch_size=_BATCH_ROWS,
        ).to_batches()
        parts = [_refused(pa.Table.from_batches([batch]), index) for batch in batches]
    found = pa.concat_tables(parts)
    if not found.num_rows:
        return None
    regions: list[str | None] = [None] * found.num_rows
    if router is not None:
        numbered = found.select(list(dict.fromkeys([*_names(base), *region_columns])))
        numbered = numbered.append_column(_INDEX, pa.array(range(found.num_rows)))
        for assignment, part in router.route(numbered):
            for number in part.column(_INDEX).to_pylist():
                regions[number] = str(assignment.region_id)
    return found.select([*_names(base), ROW_ADDRESS, _INDEX, _REASON]).append_column(
        _REGION, pa.array(regions, pa.string())
    )


def _refused(rows: pa.Table, index: MaintainedIndex) -> pa.Table:
    """Return the rows that an index refuses, with its name and the reasons."""
    reasons: dict[int, str] = {}
    if rows.num_rows and _refusal(rows, index) is not None:
        too_long = _too_long(rows, index)
        reasons = dict.fromkeys(too_long.tolist(), _TOO_LONG)
        rest = np.setdiff1d(np.arange(rows.num_rows), too_long)
        reasons |= _halve(rows, rest, index)
    positions = sorted(reasons)
    return (
        rows.take(pa.array(positions, pa.int64()))
        .append_column(_INDEX, pa.array([index.name] * len(positions), pa.string()))
        .append_column(_REASON, pa.array([reasons[at] for at in positions], pa.string()))
    )


def _halve(
    rows: pa.Table, positions: npt.NDArray[np.int64], index: MaintainedIndex
) -> Iterator[tuple[int, str]]:
    """Yield position and reason of each refused row, by halving."""
    reason = _refusal(rows.take(pa.array(positions)), index) if len(positions) else None
    if reason is None:
        return
    if len(positions) == 1:
        yield int(positions[0]), reason
        return
    middle = len(positions) // 2
    yield from _halve(rows, positions[:middle], index)
    yield from _halve(rows, positions[middle:], index)


def _refusal(rows: pa.Table, index: MaintainedIndex) -> str | None:
    """Build an index over some rows, and return why it failed; None if it did not."""
    dataset = lance.write_dataset(rows.select([index.column.partition(".")[0]]), "memory://")
    try:
        with lance_errors(f"building index {index.name}"):
            index.spec.build(dataset, name=index.name, column=index.column)
    except REFUSALS as error:
        return first_line(error.__cause__ or error)
    return None


def _too_long(rows: pa.Table, index: MaintainedIndex) -> npt.NDArray[np.int64]:
    """Return the positions of vectors whose squared length is beyond float32, for metric l2."""
    none = np.empty(0, np.int64)
    if not index.kind.is_vector or index.spec.parameters.get("metric") != "l2":
        return none
    names = index.column.split(".")
    vectors = rows.column(names[0]).combine_chunks()
    for name in names[1:]:
        vectors = pc.struct_field(vectors, name)
    if not pt.is_fixed_size_list(vectors.type) or not pt.is_floating(vectors.type.value_type):
        return none
    size = vectors.type.list_size
    values = vectors.values.slice(vectors.offset * size, len(vectors) * size)
    numbers = values.to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, size)
    with np.errstate(over="ignore", invalid="ignore"):
        is_long = np.vecdot(numbers, numbers) > np.finfo(np.float32).max
    is_long &= vectors.is_valid().to_numpy(zero_copy_only=False)
    return np.flatnonzero(is_long)


def _names(base: BaseTable) -> list[str]:
    """Return the columns that name a row: the key, or the row id of a table without one.

    A compaction may give the row another id: it is no longer reported then.
    """
    return list(base.primary_key) or [ROW_ID]


def _record(base: BaseTable, found: pa.Table) -> None:
    record = encode_rows(found.drop_columns([ROW_ADDRESS]))
    base.location.store.put(f"{UNINDEXABLE_DIR}/{uuid4()}.arrow", record)


def _still_refused(base: BaseTable, record: pa.Table) -> pa.Table:
    """Return the rows of a record that the base table has, and that their index refuses.

    Those of a damaged index are returned unchecked.
    """
    names = _names(base)
    if not record.num_rows or not set(names) <= set(record.column_names):
        return record.slice(0, 0)
    name = record.column(_INDEX)[0].as_py()
    index = index_of(base, name)
    if index is None:
        # The files of a damaged index may come back.
        return record.slice(0, 0) if describe_index(base, name) is None else record
    keys = record.select(names)
    top = index.column.partition(".")[0]
    with lance_errors(f"reading the rows that index {index.name} refused"):
        rows = scan_table(
            base.dataset,
            columns=list(dict.fromkeys([*base.primary_key, top])),
            filter=key_predicate(keys),
            with_row_id=not base.primary_key,
        )
    is_left = pc.is_in(key_column(keys, names), value_set=key_column(_refused(rows, index), names))
    return record.filter(is_left)
