"""Compare the rows that a reader returned with the expected rows, by row and by column."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

EXAMPLES = 5
"""Rows shown of each kind of difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Differences between the rows of a reader and the expected rows.

    Attributes
    ----------
    reader : str
        Name of the reader.
    rows : int
        Rows that the reader returned.
    duplicates : int
        Rows with the key of an earlier row.
    missing, unexpected : int
        Expected keys that are absent, and unexpected keys that are present.
    columns : dict
        Number of rows that differ, by column; only columns that differ.
    examples : tuple of str
        Some of the differences, as text.
    seconds : float
        Duration of the read.
    """

    reader: str
    rows: int
    duplicates: int
    missing: int
    unexpected: int
    columns: dict[str, int] = field(default_factory=dict)
    examples: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Return whether nothing differs."""
        return not (self.duplicates or self.missing or self.unexpected or self.columns)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "equal": self.equal}


def compare(
    expected: pa.Table, actual: pa.Table, *, key: str, reader: str, seconds: float = 0.0
) -> Comparison:
    """Compare two tables, whatever the order of their rows.

    Parameters
    ----------
    expected : pa.Table
        Expected rows, with unique keys. Only its columns are compared.
    actual : pa.Table
        Rows that were read.
    key : str
        Column by which rows are matched.
    reader, seconds
        Name of the reader and duration of the read, for the result.
    """
    expected, actual = expected.combine_chunks(), actual.combine_chunks()
    position = pc.index_in(actual[key], expected[key].combine_chunks())
    known = pc.is_valid(position)
    rows = position.drop_null().to_numpy()
    present = np.zeros(expected.num_rows, dtype=bool)
    present[rows] = True
    duplicates = actual.num_rows - pc.count_distinct(actual[key], mode="all").as_py()
    missing = expected[key].filter(pa.array(~present))
    unexpected = actual[key].filter(pc.invert(known))

    examples = [f"missing: {value}" for value in missing[:EXAMPLES].to_pylist()]
    examples += [f"unexpected: {value}" for value in unexpected[:EXAMPLES].to_pylist()]
    ours, theirs = expected.take(pa.array(rows)), actual.filter(known)
    columns = {}
    for name in expected.column_names:
        if name not in actual.column_names:
            columns[name] = len(rows)
            examples.append(f"column {name} is absent")
            continue
        differs = _differs(ours[name], theirs[name].cast(ours[name].type))
        count = pc.sum(differs).as_py() or 0
        if count:
            columns[name] = count
            examples += _describe(name, ours.filter(differs), theirs.filter(differs), key)
    return Comparison(
        reader=reader,
        rows=actual.num_rows,
        duplicates=duplicates,
        missing=len(missing),
        unexpected=len(unexpected),
        columns=columns,
        examples=tuple(examples),
        seconds=seconds,
    )


def _differs(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return true where exactly one value is null, or both have values that differ."""
    one_is_null = pc.xor(pc.is_null(left), pc.is_null(right))
    return pc.or_(one_is_null, pc.fill_null(pc.not_equal(left, right), False))


def _describe(name: str, ours: pa.Table, theirs: pa.Table, key: str) -> list[str]:
    rows = zip(
        ours[key][:EXAMPLES].to_pylist(),
        ours[name][:EXAMPLES].to_pylist(),
        theirs[name][:EXAMPLES].to_pylist(),
        strict=True,
    )
    return [f"{row}: {name} is {actual!r}, not {expected!r}" for row, expected, actual in rows]
