"""Every public function and method, each of its parameters, and wrong values for them.

All of it is derived from the code: a new method is tried from its first day on.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from datetime import timedelta
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from support.data.tables import rows

import memwal
from memwal import aio
from memwal.boundary.public import public

MISSING = 10**6
"""A key that the table does not have."""

WRONG: dict[str, Callable[[], object]] = {
    "None": lambda: None,
    "int": lambda: 5,
    "negative": lambda: -1,
    "huge": lambda: 10**30,
    "large": lambda: 2**63,
    "nan": lambda: float("nan"),
    "infinite": lambda: float("inf"),
    "bool": lambda: True,
    "empty": lambda: "",
    "nul": lambda: "a\0b",
    "bytes": lambda: b"x",
    "list": lambda: [1, "x", None],
    "texts": lambda: ["x"],
    "dict": lambda: {"durable": False},
    "object": object,
    "generator": lambda: (number for number in range(2)),
    "series": lambda: pd.Series([MISSING]),
    "objects": lambda: pd.Series([MISSING, "x", object()]),
    "numpy": lambda: np.array([1.5]),
    "scalar": lambda: pa.scalar(1.5),
    "expression": lambda: pc.field("n") > 1,
    "timedelta": lambda: timedelta(seconds=-1),
    "reader": lambda: pa.RecordBatchReader.from_batches(
        pa.schema([("id", pa.int64())]), _failing_batches()
    ),
}
"""Values that are wrong for most parameters, by name."""

QUICK = ("None", "object", "huge", "series", "list")
"""Those that default tests feed to every parameter."""

VALID: dict[str, Callable[[], object]] = {
    "schema": lambda: pa.schema([pa.field("id", pa.int64(), nullable=False)]),
    "primary_key": lambda: ["id"],
    "region_spec": lambda: "bucket:id:2",
    "spec": lambda: "bucket:id:2",
    "name": lambda: "hostile",
    "fetch": lambda: dict,
    # A row that the table has: a write that is accepted changes nothing.
    "data": lambda: rows({1: 1}),
    "keys": lambda: pa.array([MISSING]),
    "source": lambda: "hostile",
    "version": lambda: 1,
    "vector": lambda: [1.0, 2.0],
    "query": lambda: "x",
    "column": lambda: "id",
    "columns": lambda: ["id"],
    "num_buckets": lambda: 2,
    "width": lambda: 2,
    "sql": lambda: "col0",
    "result_type": pa.int64,
    "call": lambda: lambda _: None,
}
"""A valid value of each required parameter, by its name. One without an entry gets an object()."""


@dataclass(frozen=True)
class Call:
    """A public function or method; ``owner`` is the class that it is called on, if any."""

    name: str
    owner: type | None
    attribute: str

    @property
    def target(self) -> Any:
        """The function as the class or module has it."""
        return getattr(self.owner or memwal, self.attribute)

    def parameters(self) -> list[inspect.Parameter]:
        """Parameters that a caller can name."""
        signature = inspect.signature(self.target)
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return [p for p in signature.parameters.values() if p.kind in named and p.name != "self"]

    def valid(self) -> dict[str, object]:
        """Valid values of the required parameters."""
        return {
            p.name: VALID.get(p.name, object)()
            for p in self.parameters()
            if p.default is inspect.Parameter.empty
        }

    def __str__(self) -> str:
        return self.name


def classes() -> list[type]:
    """Return the public classes: those of ``memwal`` and what their methods return.

    A frozen dataclass that is returned holds data and is no part of the list, unless its
    constructor is public.
    """
    reached = [one for one in (getattr(memwal, name) for name in memwal.__all__) if _is_class(one)]
    reached += [aio.AsyncWriter, aio.AsyncHandle]
    for cls in reached:
        for name, member in inspect.getmembers(cls, inspect.isfunction):
            if name.startswith("_"):
                continue
            try:
                returned = get_type_hints(inspect.unwrap(member)).get("return")
            except (NameError, AttributeError):
                continue
            if _is_class(returned) and not is_dataclass(returned) and returned not in reached:
                reached.append(returned)
    return reached


def _is_class(value: Any) -> bool:
    return (
        inspect.isclass(value)
        and value.__module__.startswith("memwal.")
        and not issubclass(value, Exception)
    )


def calls() -> Iterator[Call]:
    """Yield every public function and method."""
    for name in memwal.__all__:
        if inspect.isfunction(getattr(memwal, name)):
            yield Call(name, None, name)
    for cls in classes():
        for name, member in inspect.getmembers(cls):
            function = inspect.isfunction(member) or inspect.ismethod(member)
            made_by_users = name == "__init__" and cls.__name__ in memwal.__all__
            if function and (not name.startswith("_") or made_by_users):
                yield Call(f"{cls.__name__}.{name}", cls, name)


def _failing_batches() -> Iterator[pa.RecordBatch]:
    raise ZeroDivisionError("the caller's own stream fails")
    yield


@public
class Unforeseen:
    """Calls that fail in a way that no code foresees."""

    def bug(self) -> None:
        """Fail as a careless function would."""
        raise KeyError("oops")

    def items(self) -> Iterator[int]:
        """Fail after the first item."""
        yield 1
        raise KeyError("oops")

    async def wait(self) -> None:
        """Fail in a coroutine."""
        raise KeyError("oops")

    def call(self, function: Callable[[], None]) -> None:
        """Call what the caller passed."""
        function()

    def fail(self, error: BaseException) -> None:
        """Raise an error."""
        raise error

    @property
    def broken(self) -> int:
        """Fail as a property."""
        raise KeyError("oops")
