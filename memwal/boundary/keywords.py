"""Methods that take the fields of their options as keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

Keywords = ParamSpec("Keywords")
Owner = TypeVar("Owner")
Options = TypeVar("Options")
Result = TypeVar("Result")


def keywords_of(
    options: Callable[Keywords, Options],
) -> Callable[[Callable[[Owner, Options], Result]], Callable[Concatenate[Owner, Keywords], Result]]:
    """Let a method take the fields of its options as keywords."""

    def decorate(
        method: Callable[[Owner, Options], Result],
    ) -> Callable[Concatenate[Owner, Keywords], Result]:
        @wraps(method)
        def call(owner: Owner, /, *args: Keywords.args, **kwargs: Keywords.kwargs) -> Result:
            return method(owner, options(*args, **kwargs))

        own, fields = inspect.signature(method), inspect.signature(options)
        this = next(iter(own.parameters.values()))
        call.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=[this, *fields.parameters.values()]
        )
        return call

    return decorate
