"""Values against annotations."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import numpy as np
import pytest

from memwal.boundary.arguments import Arguments, check_of
from memwal.errors import ArgumentTypeError
from memwal.jobs.job import RunState, TaskRunner

ACCEPTED: list[tuple[Any, list[object], list[object]]] = [
    (int, [1, -1, np.int64(5), 2**64 - 1], [True, 1.0, "1", None, 2**64, 10**400]),
    (float, [1, 1.5, float("inf"), np.float32(1)], [True, "1", float("nan"), None]),
    (bool, [True, np.True_], [1, 0, "yes", None]),
    (str, ["", np.str_("x")], [b"x", 1, None]),
    (str | None, [None, "x"], [1]),
    (str | os.PathLike[str], ["x"], [1, b"x"]),
    (Sequence[str], [["a"], ("a",), []], ["a", b"a", [1], {"a": 1}, None, iter(["a"])]),
    (Collection[UUID], [[uuid4()], {uuid4()}], ["x", ["x"], uuid4()]),
    (Iterable[str], [["a"], iter(["a"])], ["a", [1]]),
    (Mapping[str, str], [{}, {"a": "b"}], [[("a", "b")], "a", None]),
    (tuple[int, ...], [(1,)], [("x",), 1]),
    (Literal["or", "and"], ["or"], ["xor", None]),
    (Callable[[], None], [print], [1]),
    (type[BaseException] | None, [ValueError, None], [1]),
    (Iterator[str], [iter(["a"])], [["a"], 1]),
    (TaskRunner, [print], [1]),
    (timedelta, [timedelta(0)], [1]),
    (RunState, [RunState.FAILED, "failed"], ["other", 1]),
    (Annotated[str, "SQL"], ["x"], [1]),
]


@pytest.mark.parametrize(("annotation", "accepted", "refused"), ACCEPTED, ids=lambda _: "")
def test_values(annotation: Any, accepted: list[object], refused: list[object]) -> None:
    check = check_of(annotation)
    assert check is not None
    for value in accepted:
        assert check.accepts(value), value
    for value in refused:
        assert not check.accepts(value), value


def test_a_name_that_is_none_of_some_is_shown() -> None:
    def function(kind: Literal["or", "and"] | None, secret: str = "") -> None: ...

    arguments = Arguments(function, "function()")
    with pytest.raises(ArgumentTypeError, match="'xor'"):
        arguments.check(("xor",), {})
    with pytest.raises(ArgumentTypeError) as raised:
        arguments.check(("or",), {"secret": b"hunter2"})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("annotation", [Any, object, int | Any])
def test_some_annotations_accept_everything(annotation: Any) -> None:
    assert check_of(annotation) is None


def test_a_class_that_only_a_type_checker_imports_is_checked_by_its_name() -> None:
    class Catalogue: ...

    class Own(Catalogue): ...

    def function(catalog: Catalogue, other: Catalogue | None = None, query: Any = 0) -> None: ...

    function.__annotations__ = {
        "catalog": "Catalogue",
        "other": "Catalogue | None",
        "query": "str | Query",  # which may be a union
    }
    arguments = Arguments(function, "function()")
    arguments.check((Own(), None, 5), {})
    arguments.check((Own(),), {"other": Own()})
    for args in ((None,), ("x",), (Own(), 5)):
        with pytest.raises(ArgumentTypeError, match="Catalogue"):
            arguments.check(args, {})
