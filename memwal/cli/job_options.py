"""Options of a command that are made from the options of its job.

:mod:`memwal.jobs.options` defines each once; a command gets those that were set,
so that a policy or the default of the job decides about the rest.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints
from uuid import UUID

import typer

from memwal.cli.options import region_ids
from memwal.jobs.arguments import flag_of, help_of, metavar_of
from memwal.jobs.options import JobOptions, Kind, Option, options_of
from memwal.quality.rules import read_rules

Command = TypeVar("Command", bound=Callable[..., None])

_TYPES: dict[Kind, Any] = {
    Kind.COUNT: int | None,
    Kind.SECONDS: float | None,
    Kind.SWITCH: bool,
    Kind.REGIONS: list[UUID] | None,
    Kind.NAMES: list[str] | None,
    Kind.RULES: Path | None,
}


def takes_options_of(
    job: type[JobOptions], *, leave_out: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Add the options of a job to a command, which gets those that were set as ``changes``.

    Parameters
    ----------
    job : type
        Options of the job, such as :class:`~memwal.jobs.options.GcOptions`.
    leave_out : collection of str
        Fields that the command sets in another way, or not at all.
    """
    chosen = {name: one for name, one in options_of(job).items() if name not in leave_out}

    def decorate(command: Command) -> Command:
        @wraps(command)
        def call(**values: Any) -> None:
            changes = {name: _value(one, values.pop(name)) for name, one in chosen.items()}
            command(**values, changes={k: v for k, v in changes.items() if v is not None})

        own = inspect.signature(command)
        hints = get_type_hints(command, include_extras=True)
        hints |= {name: _annotation(job, name, one) for name, one in chosen.items()}
        table, *others = (one for one in own.parameters.values() if one.name != "changes")
        made = [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=False if one.kind is Kind.SWITCH else None,
            )
            for name, one in chosen.items()
        ]
        parameters = [one.replace(annotation=hints[one.name]) for one in (table, *made, *others)]
        call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        return call  # type: ignore[return-value]

    return decorate


def _annotation(job: type[JobOptions], name: str, option: Option) -> Any:
    """Return the type of a parameter, with what typer tells of it."""
    help = help_of(job, name, option)
    more: dict[str, Any] = {"help": f"{help[0].upper()}{help[1:]}."}
    if option.kind is not Kind.SWITCH:
        more["metavar"] = "FILE" if option.kind is Kind.RULES else metavar_of(option)
    if option.kind in (Kind.COUNT, Kind.SECONDS):
        more["min"] = option.low
    if option.kind is Kind.REGIONS:
        more["autocompletion"] = region_ids
    return Annotated[_TYPES[option.kind], typer.Option(flag_of(name, option), **more)]


def _value(option: Option, value: Any) -> Any:
    """Return the value of an option; None when it was not set."""
    if option.kind is Kind.SWITCH:
        return value or None
    if value is None:
        return None
    if option.kind is Kind.RULES:
        return read_rules(f"@{value}")
    return tuple(value) if isinstance(value, list) else value
