"""Results of reads, which run when they are used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from memwal.boundary.public import public_methods
from memwal.errors import MissingExtraError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


@public_methods
class Result:
    """Rows of a read that runs when they are used: each use reads the table as it is then.

    Made by :meth:`memwal.Table.lookup` and the searches; :class:`memwal.reader.scan.Scan` is one
    too. It is a stream of Arrow's C interface, so ``polars.DataFrame``, DuckDB and ``pa.table``
    take it as it is. ``run`` runs the read, and ``schema`` returns its columns without reading.

    >>> found = table.lookup([1, 2], columns=["n"])
    >>> found.to_pylist()
    [{'n': 5}, {'n': 6}]
    """

    def __init__(
        self,
        run: Callable[[], pa.Table | pa.RecordBatchReader],
        schema: Callable[[], pa.Schema],
    ) -> None:
        self._run = run
        self._schema = schema

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows. No rows are read."""
        return self._schema()

    def to_reader(self) -> pa.RecordBatchReader:
        """Run the read as a stream of batches."""
        rows = self._run()
        return rows.to_reader() if isinstance(rows, pa.Table) else rows

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Run the read and yield its batches."""
        yield from self.to_reader()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Run the read and yield its batches."""
        yield from self.to_reader()

    def to_table(self) -> pa.Table:
        """Run the read into memory."""
        rows = self._run()
        return rows if isinstance(rows, pa.Table) else rows.read_all()

    def to_arrow(self) -> pa.Table:
        """Run the read into memory: :meth:`to_table` by the name that LanceDB's queries have."""
        return self.to_table()

    def to_pylist(self) -> list[dict[str, Any]]:
        """Run the read into a list with one dict per row."""
        rows: list[dict[str, Any]] = self.to_table().to_pylist()
        return rows

    def to_pandas(self) -> pd.DataFrame:
        """Run the read into a data frame of pandas; MissingExtraError without pandas."""
        _require("pandas")
        return self.to_table().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Run the read into a data frame of polars; MissingExtraError without polars."""
        frame: pl.DataFrame = _require("polars").DataFrame(self.to_table())
        return frame

    def __repr__(self) -> str:
        return "Result(not read yet: use to_table(), to_pandas() or to_pylist())"

    def count_rows(self) -> int:
        """Run the read and count its rows."""
        return sum(batch.num_rows for batch in self.to_reader())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Run the read for a client of Arrow's C interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)


def _require(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"to_{package} needs {package}; pip install {package}") from error
