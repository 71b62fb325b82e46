"""Merging scan: the newest row of each key over the base table and unmerged generations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Final

import pyarrow as pa

from memwal.base_table.blobs import BlobHandling, read_schema
from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.boundary.public import public_items, public_methods
from memwal.boundary.text import html_table
from memwal.errors import ConflictError, InvalidInputError
from memwal.lsm.indexes.unusable import unusable_indexes
from memwal.reader.latest import ROW_ADDRESS, NewestRows, find_newest
from memwal.reader.merged_scan import GENERATION, MergedScan, names_in, with_extra
from memwal.reader.predicate import parenthesize_filter, translate_filter_errors
from memwal.reader.result import Result
from memwal.reader.sources.generation import ReadSources, retry_if_collected
from memwal.reader.sources.plan import ReadPlan
from memwal.region.rows import key_column

_MAX_RETRIES: Final = 5
_MAX_ROWS: Final = 2**62

# Characters of an option, or of a value, in the representation of a scan.
_SHOWN: Final = 60
# Rows of a scan in a notebook.
_HTML_ROWS: Final = 10


@public_methods
class Scan(Result):
    """Merging scan that runs when it is used: each use reads the table as it is then.

    Made by :meth:`memwal.Table.scan`, which explains the options. As a stream it holds few batches
    in memory at a time. ``open_sources`` plans the read and opens its sources; ``explain_sources``
    also lists the generations that a read leaves out unseen.

    >>> scan = table.scan(columns=["id"], filter="n >= 6")
    >>> scan.to_table().num_rows, scan.count_rows(), scan.schema.names
    (2, 2, ['id'])
    """

    def __init__(
        self,
        open_sources: Callable[[], ReadSources],
        explain_sources: Callable[[], ReadSources] | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
        offset: int = 0,
        with_generation: bool = False,
        with_row_address: bool = False,
        blob_handling: BlobHandling | None = None,
    ) -> None:
        for name, number in (("limit", limit), ("offset", offset)):
            if number is not None and number < 0:
                raise InvalidInputError(f"{name} must not be negative, it is {number}")
        super().__init__(
            lambda: retry_if_collected(self._start),
            lambda: with_extra(self._output_schema(open_sources().base), self._extra),
        )
        self._open_sources = open_sources
        self._explain_sources = explain_sources or open_sources
        self._columns = list(columns) if columns is not None else None
        self._blob_handling = blob_handling
        self._filter = parenthesize_filter(filter)
        # No table has as many rows as Arrow can count.
        self._limit = None if limit is None else min(limit, _MAX_ROWS)
        self._offset = min(offset, _MAX_ROWS)
        self._extra = [GENERATION] * with_generation + [ROW_ADDRESS] * with_row_address

    def __repr__(self) -> str:
        options = {
            "columns": self._columns,
            "filter": self._filter,
            "limit": self._limit,
            "offset": self._offset or None,
        }
        texts = {name: repr(value) for name, value in options.items() if value is not None}
        return f"Scan({', '.join(f'{name}={_cut(text)}' for name, text in texts.items())})"

    def _repr_html_(self) -> str:
        """Read the first rows for a notebook, at most ten."""
        first = copy(self)
        first._limit = min(_HTML_ROWS + 1, _MAX_ROWS if self._limit is None else self._limit)
        rows = retry_if_collected(first._start).read_all()
        cells = [column.slice(0, _HTML_ROWS).to_pylist() for column in rows.columns]
        return html_table(
            repr(self),
            rows.schema.names,
            [[_cut(str(cell)) for cell in row] for row in zip(*cells, strict=True)],
            notes=["and more rows"] if rows.num_rows > _HTML_ROWS else [],
        )

    def _output_schema(self, base: BaseTable) -> pa.Schema:
        return output_schema(base, self._columns, self._blob_handling)

    def count_rows(self) -> int:
        """Count the rows; only keys and the columns of the filter are read."""
        count = max(retry_if_collected(self._count) - self._offset, 0)
        return count if self._limit is None else min(count, self._limit)

    def explain(self) -> ReadPlan:
        """Plan the scan: the sources that it reads, and those it leaves out. No rows are read."""
        return retry_if_collected(self._explain)

    def _explain(self) -> ReadPlan:
        sources = self._explain_sources()
        base = sources.base
        names = base.schema.names
        if self._columns is not None:
            names = output_schema(base, self._columns).names
        if sources.generations:
            names = [*names, *(key for key in base.primary_key if key not in names)]
        with scan_errors(base, self._filter):
            scanner = base.dataset.scanner(
                columns=names,
                filter=self._filter,
                with_row_address=not names,
                use_scalar_index=not unusable_indexes(base),
            )
            return replace(sources.plan, base_plan=scanner.explain_plan())

    def _start(self) -> pa.RecordBatchReader:
        sources, newest = _open_newest_once(self._open_sources, self._read_from_memory)
        schema = self._output_schema(sources.base)
        batches = public_items(
            self._limited_batches(self._rows(sources, newest, schema, self._extra)), "to_reader()"
        )
        # The first batch is read now, while the scan can still start over.
        first = list(itertools.islice(batches, 1))
        if self._filter is not None and not first:
            # Where there is no row, nothing has looked at the filter.
            check_filter(sources.base, self._filter)
        return pa.RecordBatchReader.from_batches(
            with_extra(schema, self._extra), itertools.chain(first, batches)
        )

    def _count(self) -> int:
        sources, newest = _open_newest_once(self._open_sources, self._named_in_filter)
        if self._columns is not None:
            output_schema(sources.base, self._columns)
        with scan_errors(sources.base, self._filter):
            return self._rows(sources, newest, pa.schema([]), []).count()

    def _read_from_memory(self, base: BaseTable) -> list[str]:
        """Return the columns of generations that a scan reads from memory if they are narrow."""
        if self._limit is not None:
            return []
        names = output_schema(base, self._columns, self._blob_handling).names
        return [*names, *self._named_in_filter(base)]

    def _named_in_filter(self, base: BaseTable) -> list[str]:
        return [] if self._filter is None else names_in(self._filter, base)

    def _rows(
        self,
        sources: ReadSources,
        newest: NewestRows,
        schema: pa.Schema,
        extra: Sequence[str],
        *,
        keys: pa.Array | None = None,
        retries: int = _MAX_RETRIES,
    ) -> MergedScan:
        """Merge the rows of ``keys`` (default: all keys).

        If a generation is collected during the scan, the keys of its rows that were not emitted
        yet are read again from a fresh snapshot, so that each key is emitted once, with its row as
        of then. The same may happen while that snapshot is read; at most ``retries`` times.
        """

        def reread_keys(remaining_keys: pa.Array) -> Iterator[pa.RecordBatch]:
            latest, latest_newest = open_newest(self._open_sources)
            now = output_schema(latest.base, schema.names, self._blob_handling)
            if now.types != schema.types:
                raise ConflictError(
                    f"the columns of {latest.base.location} changed while it was scanned; "
                    "scan again"
                )
            rows = self._rows(
                latest, latest_newest, schema, extra, keys=remaining_keys, retries=retries - 1
            )
            yield from rows.batches(None)

        return MergedScan(
            sources,
            newest,
            schema,
            self._filter,
            extra,
            keys=keys,
            # Without keys, rows that were emitted cannot be told from rows that were merged since.
            reread_keys=reread_keys if retries and sources.base.primary_key else None,
            blob_handling=self._blob_handling,
        )

    def _limited_batches(self, rows: MergedScan) -> Iterator[pa.RecordBatch]:
        skip = self._offset
        remaining = self._limit
        if remaining == 0:
            return
        with scan_errors(rows.sources.base, self._filter):
            for batch in rows.batches(None if remaining is None else remaining + skip):
                skipped = min(skip, batch.num_rows)
                skip -= skipped
                batch = batch.slice(skipped, remaining)
                if not batch.num_rows:
                    continue
                yield batch
                if remaining is not None:
                    remaining -= batch.num_rows
                    if remaining <= 0:
                        return


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def open_newest(open_sources: Callable[[], ReadSources]) -> tuple[ReadSources, NewestRows]:
    """Open the sources of a read and find the newest row of each key among its generations.

    If a generation was collected in between, it is in the base table by then: the read is planned
    and opened again.
    """
    return retry_if_collected(lambda: _open_newest_once(open_sources))


def _open_newest_once(
    open_sources: Callable[[], ReadSources],
    columns: Callable[[BaseTable], Sequence[str]] = lambda _: (),
) -> tuple[ReadSources, NewestRows]:
    """Open sources, and find the newest rows; the caller reads ``columns`` next."""
    sources = open_sources()
    base = sources.base
    key_type = key_column(base.schema.empty_table(), base.primary_key).type
    return sources, find_newest(sources.generations, base.primary_key, key_type, columns(base))


def output_schema(
    base: BaseTable, columns: Sequence[str] | None, blob_handling: BlobHandling | None = None
) -> pa.Schema:
    """Return the schema of a read's result; refuse unknown, unusable or repeated columns."""
    base.check_usable(base.unusable if columns is None else columns)
    names = base.schema.names if columns is None else columns
    unknown = [name for name in names if name not in base.schema.names]
    if unknown:
        raise InvalidInputError(
            f"unknown columns: {', '.join(unknown)}; the table has {', '.join(base.schema.names)}"
        )
    if len(set(names)) < len(names):
        raise InvalidInputError(f"a column is named twice: {', '.join(names)}")
    return read_schema(pa.schema([base.schema.field(name) for name in names]), blob_handling)


def check_filter(base: BaseTable, predicate: str) -> None:
    """Raise InvalidInputError for a predicate that Lance cannot evaluate on the table."""
    reading = lance_errors(f"reading {base.location}")
    with reading, translate_filter_errors(predicate, base.schema):
        base.dataset.scanner(columns=[], with_row_id=True, filter=predicate).explain_plan()


@contextmanager
def scan_errors(base: BaseTable, filter: str | None) -> Iterator[None]:
    """Raise memwal errors for those of a scan of a version in the block."""
    gone = (
        f"if version {base.version} was cleaned up during the scan, scan again, and clean up only "
        "versions that are older than the longest scan takes (older_than of Lance's "
        "cleanup_old_versions), or tag the version; if not, memwal verify finds each lost file"
    )
    reading = lance_errors(f"scanning {base.location}", gone=gone)
    with reading, translate_filter_errors(filter, base.schema):
        yield
