"""Check arguments against the annotations of a function, before it does anything.

A value is refused only if its annotation states its type clearly. Protocols, type variables and
``object`` accept everything: the function checks such values itself.

No library does this: beartype, typeguard and pydantic take True for an int or refuse numpy's
numbers, take a str for a sequence of texts, and put the values, which may be secrets, in messages.
"""

from __future__ import annotations

import builtins
import collections.abc
import functools
import inspect
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain, repeat
from numbers import Integral, Real
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from memwal.errors import ArgumentTypeError

# No number of Lance, Arrow or a database is outside of these limits.
_MIN_INTEGER: Final = -(2**63)
_MAX_INTEGER: Final = 2**64 - 1
_MAX_SHOWN_TYPES: Final = 3
_MAX_SHOWN_NAME: Final = 80
_TEXTS: Final = (str, bytes, bytearray)
_CONTAINERS: Final = (
    *(Iterable, Collection, collections.abc.Sequence, collections.abc.Set, Mapping),
    *(list, tuple, set, frozenset, dict),
)


@dataclass(frozen=True, slots=True)
class ArgumentCheck:
    """Values that an annotation accepts."""

    accepts: Callable[[Any], bool]
    expected: str  # completes "pass ..."


class Arguments:
    """Checks of the arguments of one function.

    The annotations are evaluated at the first call, since they may name types that are imported
    later.
    """

    __slots__ = ("_checks", "_closed", "_function", "_name", "_owner", "_positional", "_rest")

    def __init__(
        self, function: Callable[..., object], name: str, owner: type | None = None
    ) -> None:
        self._function = function
        self._owner = owner  # class that the function constructs, if it is a constructor
        self._name = name
        self._checks: dict[str, ArgumentCheck | None] | None = (
            None  # by parameter, from the first call on
        )
        self._positional: list[str] = []
        self._rest = ""  # name of *args
        self._closed = False  # whether **kwargs may have no other names than these

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise ArgumentTypeError for the first argument whose value does not fit."""
        checks = self._checks if self._checks is not None else self._compile()
        names = chain(self._positional, repeat(self._rest)) if self._rest else self._positional
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            check = checks.get(name)
            if check is not None and not check.accepts(value):
                # Where names are expected, another text is a name that was mistyped, no secret.
                is_name = isinstance(value, str) and check.expected.startswith("'")
                given = repr(value[:_MAX_SHOWN_NAME]) if is_name else _type_name(value)
                raise ArgumentTypeError(f"{self._name}: {name} is {given}; pass {check.expected}")
        if self._closed and (unknown := kwargs.keys() - checks.keys()):
            unexpected = TypeError(f"got an unexpected keyword argument {min(unknown)!r}")
            raise self.binding_error(unexpected, kwargs)

    def fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether the function has parameters for these arguments, and no others."""
        try:
            inspect.signature(self._function).bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def binding_error(self, error: TypeError, kwargs: Collection[str]) -> ArgumentTypeError:
        """Return the error for arguments that are missing, unknown or too many."""
        import difflib

        checks = self._checks if self._checks is not None else self._compile()
        names = [name for name in checks if name not in ("self", self._rest)]
        unknown = [name for name in kwargs if name not in names]
        close = [match for name in unknown for match in difflib.get_close_matches(name, names, 1)]
        advice = f"did you mean {', '.join(close)}?" if close else f"it takes {', '.join(names)}"
        problem = str(error).partition("() ")[2] or str(error)
        return ArgumentTypeError(f"{self._name} {problem}; {advice}")

    def _compile(self) -> dict[str, ArgumentCheck | None]:
        hints = _hints(self._function, self._owner)
        checks: dict[str, ArgumentCheck | None] = {}
        positional = []
        for name, parameter in inspect.signature(self._function).parameters.items():
            hint = hints.get(name, Any)
            if parameter.kind is parameter.VAR_KEYWORD:
                options = _unpacked(hint)
                self._closed = bool(options)
                checks |= {option: check_of(value) for option, value in options.items()}
                continue
            checks[name] = check_of(hint)
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._rest = name
            elif parameter.kind is not parameter.KEYWORD_ONLY:
                positional.append(name)
        self._positional = positional
        # Last: other threads go by it.
        self._checks = checks
        return checks


def check_of(annotation: Any) -> ArgumentCheck | None:
    """Return the check of an annotation; None if it accepts everything."""
    simple = _SIMPLE.get(annotation) if isinstance(annotation, type) else None
    if simple is not None:
        return simple
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        check = check_of(inner[0])
        return check and ArgumentCheck(check.accepts, str(inner[1]))
    if origin in (Union, types.UnionType):
        others = [part for part in inner if part is not types.NoneType]
        if len(others) > 1 and any(isinstance(part, _ByName) for part in others):
            return None  # beside other types, a name may be that of a union
        return _any_of([check_of(part) for part in inner])
    if origin is Literal:
        # Compared values must be of a plain type: arrays answer with an array, or not at all.
        kinds = tuple({type(one) for one in inner})
        return ArgumentCheck(
            lambda value: isinstance(value, kinds) and value in inner,
            " or ".join(map(repr, inner)),
        )
    if origin is collections.abc.Callable:
        return ArgumentCheck(callable, "a function")
    if origin in _CONTAINERS:
        # The function names a wrong key or value: here it could not be told from a secret.
        is_dict = issubclass(origin, Mapping)
        return _instances(Mapping, "a dict") if is_dict else _elements(origin, inner)
    if getattr(annotation, "_is_protocol", False):
        is_function = "__call__" in vars(annotation) and callable(vars(annotation)["__call__"])
        return ArgumentCheck(callable, "a function") if is_function else None
    return _instances(origin or annotation)


def _instances(kind: Any, expected: str | None = None) -> ArgumentCheck | None:
    if not isinstance(kind, type) or kind in (object, Any) or is_typeddict(kind):
        return None
    if issubclass(kind, Enum) and issubclass(kind, str):
        values = [member.value for member in kind]
        return ArgumentCheck(
            lambda value: isinstance(value, str) and value in values, " or ".join(map(repr, values))
        )
    module = kind.__module__.partition(".")[0]
    name = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    return ArgumentCheck(lambda value: isinstance(value, kind), expected or f"a {name}")


def _any_of(checks: list[ArgumentCheck | None]) -> ArgumentCheck | None:
    if None in checks:
        return None
    # None is named last, and tried first: most options are None.
    parts = sorted(filter(None, checks), key=lambda check: check is _NONE)
    expected = ", ".join(part.expected for part in parts if part is not _NONE)
    return ArgumentCheck(
        functools.reduce(_either, [part.accepts for part in reversed(parts)]),
        f"{expected}, or None" if _NONE in parts else expected,
    )


def _either(one: Callable[[Any], bool], other: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: one(value) or other(value)


def _elements(kind: Any, inner: tuple[Any, ...]) -> ArgumentCheck:
    element = check_of(inner[0]) if inner and inner[0] is not ... else None
    if kind is tuple and not (len(inner) == 2 and inner[1] is ...):
        element = None
    lazy = kind is collections.abc.Iterable

    def accepts(value: Any) -> bool:
        if isinstance(value, _TEXTS) or not isinstance(value, Iterable):
            return False
        if not isinstance(value, collections.abc.Sized):
            # An iterator can be read once: its elements are checked where they are used.
            return lazy
        if isinstance(value, Mapping):
            return False
        return element is None or all(element.accepts(item) for item in value)

    of = "" if element is None else f" of {element.expected.removeprefix('a ')}"
    return ArgumentCheck(accepts, f"a list{of}")


def _is_integer(value: Any) -> bool:
    return (
        isinstance(value, Integral)
        and not isinstance(value, bool)
        and _MIN_INTEGER <= int(value) <= _MAX_INTEGER
    )


def _is_number(value: Any) -> bool:
    # NaN differs from itself.
    return isinstance(value, Real) and not isinstance(value, bool) and bool(value == value)


def _is_bool(value: Any) -> bool:
    # numpy's type is no bool; this module imports no numpy.
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


_NONE: Final = ArgumentCheck(lambda value: value is None, "None")
_SIMPLE: Final[dict[Any, ArgumentCheck]] = {
    type(None): _NONE,
    bool: ArgumentCheck(_is_bool, "True or False"),
    int: ArgumentCheck(_is_integer, "an int of 64 bits"),
    float: ArgumentCheck(_is_number, "a number other than NaN"),
    str: ArgumentCheck(lambda value: isinstance(value, str), "a str"),
}


class _ByName(type):
    """Class that only a type checker imports: its objects are known by the name of their class."""

    def __instancecheck__(cls, value: object) -> bool:
        return any(base.__name__ == cls.__name__ for base in type(value).__mro__)


class _Names(ChainMap[str, Any]):
    """Names of a module, in which an annotation is evaluated."""

    def __missing__(self, name: str) -> type:
        return _ByName(name, (), {"__module__": "builtins"})


def _hints(function: Callable[..., object], owner: type | None) -> dict[str, Any]:
    function = inspect.unwrap(function)
    hints: dict[str, Any] = {}
    for name, annotation in function.__annotations__.items():
        if name == "return":
            continue
        # The constructor of a dataclass has fields of its bases, which other modules define.
        bases = () if owner is None else owner.__mro__
        base = next((b for b in bases if name in vars(b).get("__annotations__", ())), None)
        namespace = function.__globals__ if base is None else vars(sys.modules[base.__module__])
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        names = _Names(namespace, vars(builtins))
        hints |= get_type_hints(holder, namespace, names, include_extras=True)
    return hints


def _unpacked(annotation: Any) -> dict[str, Any]:
    """Return the annotations of ``**options: Unpack[Options]``."""
    if get_origin(annotation) is not Unpack:
        return {}
    (options,) = get_args(annotation)
    return get_type_hints(options, vars(sys.modules[options.__module__]), include_extras=True)


def _type_name(value: object) -> str:
    """Name a value by its type: the value itself may be a secret, or large."""
    name = type(value).__name__
    if isinstance(value, list | tuple | set | frozenset) and value:
        elements = sorted({type(item).__name__ for item in value})
        more = ", ..." if len(elements) > _MAX_SHOWN_TYPES else ""
        return f"a {name} of {', '.join(elements[:_MAX_SHOWN_TYPES])}{more}"
    return f"of type {name}"
