"""Changes as a stream brings them: rows of the test tables, with an operation and an order."""

from typing import Any

import pyarrow as pa

CHANGES = "id bigint, n bigint, text string, op string, at bigint"


def change(key: int, n: int, *, at: int = 0, op: str = "u") -> tuple[Any, ...]:
    return key, n, f"{key}={n}", op, at


def batch(*changes: tuple[Any, ...]) -> pa.Table:
    columns = zip(*changes, strict=True)
    return pa.table(dict(zip(("id", "n", "text", "op", "at"), map(list, columns), strict=True)))
