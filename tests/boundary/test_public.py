"""What the boundary lets out: memwal's own errors, and those of the caller's code."""

import asyncio
from functools import partial

import pytest
from hostile.calls import Unforeseen

from memwal.errors import (
    ArgumentTypeError,
    InternalError,
    InvalidInputError,
    MemWalError,
    MissingExtraError,
    ResourceLimitError,
    StoreAccessError,
    StoreUnavailableError,
)


def stop() -> None:
    raise KeyError("the caller's own")


class Stopping:
    """A callable object."""

    def __call__(self) -> None:
        stop()


def test_a_bug_is_an_internal_error_with_its_cause() -> None:
    for failing in (
        Unforeseen().bug,
        lambda: list(Unforeseen().items()),
        lambda: asyncio.run(Unforeseen().wait()),
        lambda: Unforeseen().broken,
    ):
        with pytest.raises(InternalError) as raised:
            failing()
        assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError("LanceError(IO): Generic error"), StoreUnavailableError),
        (PermissionError(13, "Permission denied"), StoreAccessError),
        (ValueError("LanceError(IO): access denied, src/x.rs:1"), StoreAccessError),
        (ModuleNotFoundError("no pandas", name="pandas"), MissingExtraError),
        (MemoryError(), ResourceLimitError),
        (RuntimeError("can't start new thread"), ResourceLimitError),
        (OSError(24, "Too many open files"), ResourceLimitError),
        (ValueError("LanceError(IO): Too many open files (os error 24), x.rs"), ResourceLimitError),
        (InvalidInputError("known"), InvalidInputError),
        (ValueError("a bug"), InternalError),
        (TypeError("a bug"), InternalError),
        (ModuleNotFoundError("a bug", name="memwal.nothing"), InternalError),
    ],
)
def test_errors_of_libraries_are_translated(error: Exception, kind: type[MemWalError]) -> None:
    with pytest.raises(MemWalError) as raised:
        Unforeseen().fail(error)
    assert type(raised.value) is kind
    assert raised.value is error or raised.value.__cause__ is error


@pytest.mark.parametrize("function", [stop, Stopping(), partial(stop)])
def test_errors_of_what_the_caller_passed_in_are_unchanged(function: object) -> None:
    with pytest.raises(KeyError):
        Unforeseen().call(function)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_conditions_of_the_process_are_unchanged(error: BaseException) -> None:
    with pytest.raises(type(error)):
        Unforeseen().fail(error)


def test_arguments_that_do_not_fit_the_call() -> None:
    with pytest.raises(ArgumentTypeError, match="function"):
        Unforeseen().call(functoin=stop)  # type: ignore[call-arg]
    with pytest.raises(ArgumentTypeError, match="function"):
        Unforeseen().call()  # type: ignore[call-arg]
    assert issubclass(ArgumentTypeError, (TypeError, ValueError))
