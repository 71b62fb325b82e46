"""Decorator of public calls: it checks arguments, and lets out no error but MemWalError.

Three kinds of errors reach the decorator:

- a :class:`~memwal.errors.MemWalError`, raised where the cause was known: it passes;
- an error that a library did not translate, or a bug: it becomes the error that it means (a store
  that failed, a package that is missing), otherwise an :class:`~memwal.errors.InternalError`. The
  original is its cause;
- an error of a function that the caller passed in (a guard, a task runner, a callback): it passes,
  since the caller knows it.

``KeyboardInterrupt`` and its like pass as well. If the process has no more open files, memory or
threads, the error is a :class:`~memwal.errors.ResourceLimitError`.
"""

from __future__ import annotations

import functools
import inspect
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar

from memwal.boundary.arguments import Arguments
from memwal.boundary.lance_errors import (
    first_line,
    is_limit,
    is_panic,
    limit_error,
    translate_lance_error,
)
from memwal.errors import InternalError, MemWalError, MissingExtraError
from memwal.util.log import safe_error_text

Target = TypeVar("Target")
Item = TypeVar("Item")
Keywords = ParamSpec("Keywords")
Owner = TypeVar("Owner")
Options = TypeVar("Options")
Result = TypeVar("Result")

# Methods with two underscores that users call, most of them by an operator or a statement.
_SPECIAL: Final = frozenset(
    {
        "__enter__",
        "__exit__",
        "__call__",
        "__iter__",
        "__next__",
        "__len__",
        "__getitem__",
        "__arrow_c_stream__",
    }
)
# In errors of Lance that have no other type than ValueError or RuntimeError.
_LANCE: Final = ("LanceError(", ".rs:")


def public(target: Target) -> Target:
    """Put a function, or the constructor and the public methods of a class, behind the boundary.

    Methods that a class inherits are behind it if their own class is decorated.
    """
    if isinstance(target, type):
        if "__init__" in vars(target):
            wrapped_init = _function(vars(target)["__init__"], f"{target.__name__}()", target)
            type.__setattr__(target, "__init__", wrapped_init)
        return public_methods(target)
    wrapped: Target = _function(target, f"{getattr(target, '__name__', '')}()")
    return wrapped


def public_methods(cls: Target) -> Target:
    """Put the public methods of a class behind the boundary, which only memwal makes objects of."""
    for name, member in list(vars(cls).items()):
        if not name.startswith("_") or name in _SPECIAL:
            wrapped = _member(member, f"{name}()")
            if wrapped is not member:
                setattr(cls, name, wrapped)
    return cls


def keywords_of(
    options: Callable[Keywords, Options],
) -> Callable[[Callable[[Owner, Options], Result]], Callable[Concatenate[Owner, Keywords], Result]]:
    """Let a method take the fields of its options as keywords."""

    def decorate(
        method: Callable[[Owner, Options], Result],
    ) -> Callable[Concatenate[Owner, Keywords], Result]:
        @functools.wraps(method)
        def call(owner: Owner, /, *args: Keywords.args, **kwargs: Keywords.kwargs) -> Result:
            return method(owner, options(*args, **kwargs))

        own, fields = inspect.signature(method), inspect.signature(options)
        this = next(iter(own.parameters.values()))
        call.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=[this, *fields.parameters.values()]
        )
        return call

    return decorate


def is_public(target: object) -> bool:
    """Return whether a function is behind the boundary."""
    function = getattr(target, "__func__", target)
    return isinstance(function, FunctionType) and function.__code__.co_filename == __file__


def public_items(items: Iterable[Item], name: str) -> Iterator[Item]:
    """Yield items behind the boundary, for reads after the call has returned."""
    return _iterate(iter(items), name, None, (), {})


def _member(member: Any, name: str) -> Any:
    if isinstance(member, FunctionType):
        return _function(member, name)
    if isinstance(member, classmethod):
        return classmethod(_function(member.__func__, name))
    if isinstance(member, staticmethod):
        return staticmethod(_function(member.__func__, name))
    if isinstance(member, property) and member.fget is not None:
        return property(_function(member.fget, name), member.fset, member.fdel, member.__doc__)
    return member


def _function(function: Any, name: str, owner: type | None = None) -> Any:
    arguments = Arguments(function, name, owner)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments.check(args, kwargs)
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            _raise_translated(error, name, arguments, args, kwargs)

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        arguments.check(args, kwargs)
        try:
            return await function(*args, **kwargs)
        except BaseException as error:
            _raise_translated(error, name, arguments, args, kwargs)

    @functools.wraps(function)
    def iterate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        return _iterate(call(*args, **kwargs), name, arguments, args, kwargs)

    if inspect.iscoroutinefunction(function):
        return call_async
    return iterate if inspect.isgeneratorfunction(function) else call


def _iterate(
    items: Iterator[Item], name: str, arguments: Arguments | None, args: Any, kwargs: Any
) -> Iterator[Item]:
    try:
        yield from items
    except BaseException as error:
        _raise_translated(error, name, arguments, args, kwargs)


def _raise_translated(
    error: BaseException,
    name: str,
    arguments: Arguments | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> NoReturn:
    """Raise the memwal error for an error that reached the boundary, or the error itself."""
    if is_limit(error) and is_panic(error):
        raise limit_error(error, name) from error
    if is_panic(error):
        raise _internal_error(error, name) from error
    if not isinstance(error, Exception) or isinstance(error, MemWalError):
        raise
    if arguments is not None and isinstance(error, TypeError) and not arguments.fit(args, kwargs):
        raise arguments.binding_error(error, kwargs) from error
    if _is_of_the_caller(error, (*args, *kwargs.values())):
        raise
    if isinstance(error, ModuleNotFoundError) and not (error.name or "memwal").startswith("memwal"):
        missing = f"{name}: {error.name} is not installed, which this needs"
        raise MissingExtraError(missing) from error
    if isinstance(error, RuntimeError) and not threading.main_thread().is_alive():
        raise MemWalError(
            f"{name}: the interpreter is ending and starts no more threads; do this before, for "
            "example in a with block, and close writers at the end of the program"
        ) from error
    if is_limit(error):
        raise limit_error(error, name) from error
    if isinstance(error, OSError) or any(sign in str(error) for sign in _LANCE):
        raise translate_lance_error(error, name) from error
    raise _internal_error(error, name) from error


def _internal_error(error: BaseException, name: str) -> InternalError:
    shown = first_line(error) if is_panic(error) else safe_error_text(error)
    return InternalError(
        f"{name} failed in a way that memwal does not foresee: {shown}; whether it changed "
        "anything is not known: look before you repeat it, and report it with the traceback"
    )


def _is_of_the_caller(error: BaseException, values: Iterable[object]) -> bool:
    """Return whether a function that the caller passed in raised an error.

    It did if the innermost frame that is memwal's or of such a function is of the function.
    """
    codes = {code for value in _with_fields(values) if callable(value) for code in _codes_of(value)}
    if not codes:
        return False
    frames: list[FrameType] = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        if frame.f_code in codes:
            return True
        if frame.f_globals.get("__name__", "").partition(".")[0] == "memwal":
            return False
    return False


def _with_fields(values: Iterable[object]) -> Iterator[object]:
    """Yield values, and the fields of option objects among them."""
    for value in values:
        yield value
        if is_dataclass(value) and not isinstance(value, type):
            yield from (getattr(value, field.name) for field in fields(value))


def _codes_of(value: Any) -> Iterator[CodeType]:
    while isinstance(value, functools.partial):
        value = value.func
    # A function, a bound method, or an object that can be called.
    method = vars(type(value)).get("__call__")
    for function in (value, getattr(value, "__func__", None), method):
        if isinstance(function, FunctionType):
            yield function.__code__
