"""Check arguments against the annotations of a function, before it does anything.

A value is refused only if its annotation says clearly what it must be. Protocols, type variables
and ``object`` accept everything: the function checks such values itself.
"""

from __future__ import annotations

import collections.abc
import difflib
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
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
_ITERABLES: Final = frozenset(
    {
        collections.abc.Sequence,
        collections.abc.Collection,
        collections.abc.Iterable,
        collections.abc.Set,
        list,
        tuple,
        set,
        frozenset,
    }
)
_MAPPINGS: Final = frozenset({collections.abc.Mapping, dict})
_CLASS_NAME: Final = re.compile(r"([A-Z]\w*)( \| None)?")
_TEXTS: Final = (str, bytes, bytearray)


@dataclass(frozen=True, slots=True)
class Check:
    """Values that an annotation accepts."""

    accepts: Callable[[Any], bool]
    expected: str  # completes "pass ..."


class Arguments:
    """Checks of the arguments of one function.

    The annotations are evaluated at the first call, since they may name what is imported later.
    """

    __slots__ = (
        "_closed",
        "_compiled",
        "_function",
        "_name",
        "_named",
        "_owner",
        "_positional",
        "_rest",
    )

    def __init__(
        self, function: Callable[..., object], name: str, owner: type | None = None
    ) -> None:
        self._function = function
        self._owner = owner  # class that the function constructs, if it is a constructor
        self._name = name
        self._compiled = False
        self._positional: tuple[tuple[str, Check | None], ...] = ()
        self._named: dict[str, Check | None] = {}
        self._closed = False  # whether **kwargs may have no other names than these
        self._rest: tuple[str, Check | None] = ("", None)  # of *args

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise ArgumentTypeError for the first argument whose value does not fit."""
        if not self._compiled:
            self._compile()
        for value, (name, check) in zip(args, self._positional, strict=False):
            if check is not None and not check.accepts(value):
                raise self._type_error(name, value, check)
        name, check = self._rest
        if check is not None:
            for value in args[len(self._positional) :]:
                if not check.accepts(value):
                    raise self._type_error(name, value, check)
        for name, value in kwargs.items():
            check = self._named.get(name)
            if self._closed and name not in self._named:
                unexpected = TypeError(f"got an unexpected keyword argument {name!r}")
                raise self.binding_error(unexpected, kwargs)
            if check is not None and not check.accepts(value):
                raise self._type_error(name, value, check)

    def fit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether the function has parameters for these arguments, and no others."""
        try:
            inspect.signature(self._function).bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def binding_error(self, error: TypeError, kwargs: Collection[str]) -> ArgumentTypeError:
        """Return the error for arguments that are missing, unknown or too many."""
        if not self._compiled:
            self._compile()
        names = [name for name in self._named if name != "self"]
        unknown = [name for name in kwargs if name not in self._named]
        close = [match for name in unknown for match in difflib.get_close_matches(name, names, 1)]
        advice = f"did you mean {', '.join(close)}?" if close else f"it takes {', '.join(names)}"
        problem = str(error).partition("() ")[2] or str(error)
        return ArgumentTypeError(f"{self._name} {problem}; {advice}")

    def _type_error(self, name: str, value: object, check: Check) -> ArgumentTypeError:
        return ArgumentTypeError(
            f"{self._name}: {name} is {_type_name(value)}; pass {check.expected}"
        )

    def _compile(self) -> None:
        parameters = inspect.signature(self._function).parameters.values()
        hints = _hints(self._function, self._owner)
        positional: list[tuple[str, Check | None]] = []
        for parameter in parameters:
            check = check_of(hints.get(parameter.name, Any))
            match parameter.kind:
                case parameter.VAR_POSITIONAL:
                    self._rest = (parameter.name, check)
                case parameter.VAR_KEYWORD:
                    options = _unpacked(hints.get(parameter.name))
                    self._closed = bool(options)
                    self._named.update({n: check_of(option) for n, option in options.items()})
                case parameter.KEYWORD_ONLY:
                    self._named[parameter.name] = check
                case _:
                    positional.append((parameter.name, check))
                    self._named[parameter.name] = check
        self._positional = tuple(positional)
        self._compiled = True


def check_of(annotation: Any) -> Check | None:
    """Return the check of an annotation; None if it accepts everything."""
    if isinstance(annotation, Check):
        return annotation
    simple = _SIMPLE.get(annotation) if isinstance(annotation, type) else None
    if simple is not None:
        return simple
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        check = check_of(inner[0])
        return check and Check(check.accepts, str(inner[1]))
    if origin in (Union, types.UnionType):
        return _any_of([check_of(part) for part in inner])
    if origin is Literal:
        return Check(lambda value: value in inner, " or ".join(map(repr, inner)))
    if origin in _ITERABLES or annotation in _ITERABLES:
        return _elements(origin or annotation, inner)
    if origin in _MAPPINGS or annotation in _MAPPINGS:
        return _mapping(inner)
    if origin is collections.abc.Callable or annotation is collections.abc.Callable:
        return Check(callable, "a function")
    if getattr(annotation, "_is_protocol", False):
        is_function = "__call__" in vars(annotation) and callable(vars(annotation)["__call__"])
        return Check(callable, "a function") if is_function else None
    return _instances(origin or annotation)


def _instances(kind: Any) -> Check | None:
    if not isinstance(kind, type) or kind in (object, Any) or is_typeddict(kind):
        return None
    if issubclass(kind, Enum) and issubclass(kind, str):
        values = [member.value for member in kind]
        return Check(
            lambda value: isinstance(value, str) and value in values, " or ".join(map(repr, values))
        )
    module = kind.__module__.partition(".")[0]
    name = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    return Check(lambda value: isinstance(value, kind), f"a {name}")


def _any_of(checks: list[Check | None]) -> Check | None:
    parts = [check for check in checks if check is not None and check is not _NONE]
    if None in checks:
        return None
    expected = ", ".join(part.expected for part in parts)
    accepts = tuple(part.accepts for part in parts)
    if len(accepts) == 1 and _NONE in checks:
        # Most options are of this kind, and some are on the path of every write.
        (only,) = accepts
        return Check(lambda value: value is None or only(value), f"{expected}, or None")
    if _NONE in checks:
        expected = f"{expected}, or None"
        accepts = (*accepts, _NONE.accepts)
    return Check(lambda value: any(accept(value) for accept in accepts), expected)


def _elements(kind: Any, inner: tuple[Any, ...]) -> Check:
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

    of = "" if element is None else f" of {_expected_text(element)}"
    return Check(accepts, f"a list{of}")


def _mapping(inner: tuple[Any, ...]) -> Check:
    # The function names a wrong key or value itself: here it could not be told from a secret.
    parts = [check for part in inner if (check := check_of(part)) is not None]
    of = f" of {' to '.join(map(_expected_text, parts))}" if len(parts) == 2 else ""
    return Check(lambda value: isinstance(value, Mapping), f"a dict{of}")


def _expected_text(check: Check) -> str:
    return check.expected.removeprefix("a ").removeprefix("an ")


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


_NONE: Final = Check(lambda value: value is None, "None")
_SIMPLE: Final[dict[Any, Check]] = {
    type(None): _NONE,
    bool: Check(_is_bool, "True or False"),
    int: Check(_is_integer, "an int"),
    float: Check(_is_number, "a number"),
    str: Check(lambda value: isinstance(value, str), "a str"),
    os.PathLike: Check(lambda value: isinstance(value, os.PathLike), "a path"),
}


def _hints(function: Callable[..., object], owner: type | None) -> dict[str, Any]:
    """Evaluate the annotations; a class that only a type checker imports is checked by its name."""
    annotations = _annotations(function)
    own_namespace = getattr(inspect.unwrap(function), "__globals__", {})
    hints: dict[str, Any] = {}
    for name, annotation in annotations.items():
        if name == "return":
            continue
        # The constructor of a dataclass has fields of its bases, which other modules define.
        bases = () if owner is None else owner.__mro__
        base = next((b for b in bases if name in vars(b).get("__annotations__", ())), None)
        namespace = own_namespace if base is None else vars(sys.modules[base.__module__])
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints.update(get_type_hints(holder, namespace, include_extras=True))
        except (NameError, AttributeError):
            hints[name] = _check_by_name(annotation)
    return hints


def _check_by_name(annotation: str) -> Check | None:
    """Return the check of ``Name`` or ``Name | None``, where the name is that of a class."""
    match = _CLASS_NAME.fullmatch(annotation)
    if match is None:
        return None
    class_name, or_none = match.groups()

    def accepts(value: object) -> bool:
        return any(base.__name__ == class_name for base in type(value).__mro__)

    check = Check(accepts, f"a {class_name}")
    return _any_of([check, _NONE]) if or_none else check


def _annotations(function: Callable[..., object]) -> dict[str, Any]:
    return dict(getattr(inspect.unwrap(function), "__annotations__", {}))


def _unpacked(annotation: Any) -> dict[str, Any]:
    """Return the annotations of ``**options: Unpack[Options]``."""
    if get_origin(annotation) is not Unpack:
        return {}
    (options,) = get_args(annotation)
    return get_type_hints(options, vars(sys.modules[options.__module__]), include_extras=True)


def _type_name(value: object) -> str:
    """Name a value by its type: the value itself may be a secret, or large."""
    name = type(value).__name__
    if isinstance(value, list | tuple | set | frozenset):
        elements = sorted({type(item).__name__ for item in value})
        more = ", ..." if len(elements) > _MAX_SHOWN_TYPES else ""
        return f"a {name} of {', '.join(elements[:_MAX_SHOWN_TYPES])}{more}" if elements else name
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, int) and not _is_integer(value) and not isinstance(value, bool):
        return "larger than 64 bits"
    return f"of type {name}"
