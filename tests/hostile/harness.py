"""What may come of hostile input: an answer, or a refusal that says what to do.

An area is one place where something of a user is read. It draws inputs, and tries each of them;
whatever is raised must be an error of ours that shows no secret. Everything else is a find: a
``KeyError``, a panic of a native library, a recursion that ends the process.
"""

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from memwal.errors import InternalError, MemWalError

# What a message repeats of an input.
_VARYING = re.compile(r"memwal \[.*?\] |'[^']*'", re.DOTALL)
T = TypeVar("T")

SECRET = "hide-me-0a1b2c3d4e"
LONGEST_MESSAGE = 100_000


class Broken(AssertionError):
    """Something came of an input that must not."""


@dataclass(frozen=True)
class Area:
    """A place where something of a user is read.

    Attributes
    ----------
    name : str
    inputs : strategy
        What is tried.
    attempt : callable
        Takes what ``place`` gives, and an input.
    place : callable
        Takes an empty folder; makes what the attempts need, a table for example.
    examples : int, default 15
        How many inputs the default tests try.
    weakness : pair of module or class, and str
        Function that a test breaks to see that the area notices, by its name in there.
    """

    name: str
    inputs: SearchStrategy[Any]
    attempt: Callable[[Any, Any], object]
    weakness: tuple[object, str]
    place: Callable[[Path], AbstractContextManager[Any]] = lambda _: nullcontext()
    examples: int = 15

    def __str__(self) -> str:
        return self.name


def safely(call: Callable[[], T]) -> T | MemWalError:
    """Return the answer of a call, or the error of ours that it raised.

    Raises
    ------
    Broken
        It raised something else, or the error says nothing, too much or a secret.
    """
    try:
        return call()
    except InternalError as error:
        cause = error.__cause__ or error
        raise Broken(f"{type(cause).__name__} was not foreseen: {cause}") from cause
    except MemWalError as error:
        check_error(error)
        return error
    except Broken:
        raise
    # A panic of a native library is no Exception.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise Broken(f"{type(error).__name__} instead of an error of ours: {error}") from error


def check_error(error: BaseException) -> None:
    """Refuse an error that has no words, too many, or a secret in what a traceback would show."""
    text = str(error)
    if not text.strip() or len(text) > LONGEST_MESSAGE:
        raise Broken(f"{type(error).__name__} has a message of {len(text)} characters")
    for one in shown_with(error):
        check_secret(str(one), where=type(one).__name__)


def check_secret(text: str, *, where: str) -> None:
    """Refuse a text that shows a secret."""
    if SECRET in text:
        raise Broken(f"a secret is shown by {where}: {text[:500]}")


def shown_with(error: BaseException) -> Iterator[BaseException]:
    """The errors that a traceback would show."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def fuzz(area: Area, folder: Path, *, examples: int) -> None:
    """Try so many inputs in an area; hypothesis tells of the simplest one that breaks something."""
    with area.place(folder) as place:

        @settings(max_examples=examples, phases=set(Phase) - {Phase.explain})
        @given(area.inputs)
        def attempt(value: Any) -> None:
            area.attempt(place, value)

        attempt()


def survey(area: Area, folder: Path, *, examples: int, number: int) -> dict[str, Any]:
    """Try so many inputs of a seed, and return an input for each place that broke."""
    found: dict[str, Any] = {}
    with area.place(folder) as place:

        @seed(number)
        @settings(
            max_examples=examples,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(area.inputs)
        def attempt(value: Any) -> None:
            try:
                area.attempt(place, value)
            except Exception as error:
                found.setdefault(_place(error), value)

        attempt()
    return found


def _place(error: Exception) -> str:
    """What broke, and where in our code."""
    deepest = error.__cause__ or error
    frames = traceback.extract_tb(deepest.__traceback__)
    ours = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "/memwal" in f.filename]
    said = _VARYING.sub("...", str(error))[:300]
    return f"{type(deepest).__name__} at {' '.join(ours[-2:])}: {said}"


def must_answer(make: Callable[[], object], what: str) -> MemWalError | None:
    """Make a call. Anything but an answer or a MemWalError fails."""
    try:
        make()
    except MemWalError as error:
        if isinstance(error, InternalError):
            pytest.fail(f"{what}: {error.__cause__!r}")
        check_error(error)
        return error
    except Exception as error:
        pytest.fail(f"{what} raised {type(error).__name__}: {error}")
    return None
