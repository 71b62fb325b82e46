"""Parameters of commands that stand for several options of the command line.

A :class:`CommandGroup` adds ``--json`` to commands that return an ``Output``, which it prints, and
replaces parameters of its commands by their types:

* ``Storage``: the two storage options; the command gets them as one mapping.
* ``Table``: the name or address of a table, the storage options, and the URL of the catalog that
  has the name; the command gets the open table.
* ``TableLocation``: the same options; the command gets the location of a table that it opens, or
  does not open, by itself.
* ``Catalog``: the URL of a catalog; the command gets the catalog, closed at the end.
* ``RegionId`` and the regions of a job's options, beside a table: ids or their first digits; the
  command gets the ids.

:func:`takes_options_of` adds options of a job. :mod:`memwal.jobs.options` defines each once; a
command gets the options that were set, so that a policy or the default of the job decides about the
others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial, wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from memwal.cli.options import (
    AsJson,
    CatalogUrl,
    NameOrUri,
    OptionPairs,
    OptionsFile,
    RegionName,
    locate_named,
    open_catalog,
    open_named,
    region_ids,
    storage_options,
    with_region_ids,
)
from memwal.cli.output import Output
from memwal.jobs.arguments import NONE, flag_of, help_of, metavar_of
from memwal.jobs.options import JobOptions, Option, OptionKind, options_of
from memwal.quality.rules import read_rules

Command = TypeVar("Command", bound=Callable[..., Output | None])
Changes = dict[str, Any]
Storage = dict[str, str]

_TYPES: dict[OptionKind, object] = {
    OptionKind.COUNT: int | None,
    OptionKind.SECONDS: float | None,
    OptionKind.SWITCH: bool,
    OptionKind.REGIONS: list[RegionName] | None,
    OptionKind.NAMES: list[str] | None,
    OptionKind.RULES: Path | None,
    OptionKind.TEXT: str | None,
}


class _OpenTable:
    """Stands for ``memwal.table.Table`` in a signature, since that is imported by few commands."""


class _Location:
    """Stands for ``memwal.storage.location.TableLocation`` in a signature."""


class _OpenCatalog:
    """Stands for ``memwal.catalog.Catalog`` in a signature."""


_LAZY_TYPES = {"Table": _OpenTable, "TableLocation": _Location, "Catalog": _OpenCatalog}


class CommandGroup(typer.Typer):
    """Group of commands whose parameters can stand for several options; see the module."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"no_args_is_help": True, "rich_markup_mode": None, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Command], Command]:
        """Add a command."""
        register = super().command(name, **settings)

        def add(command: Command) -> Command:
            register(_with_resources(command))
            return command

        return add


def takes_options_of(
    job: type[JobOptions], *, leave_out: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Replace the parameter ``changes`` of a command by the options of a job.

    ``leave_out`` are fields that the command sets in another way, or not at all.
    """
    options = {name: option for name, option in options_of(job).items() if name not in leave_out}
    parameters = [_option_parameter(job, name, option) for name, option in options.items()]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def call(**values: object) -> Output | None:
            given = {name: _value(option, values.pop(name)) for name, option in options.items()}
            changes = {
                name: None if value == NONE else value
                for name, value in given.items()
                if value is not None
            }
            return command(**values, changes=changes)

        return _with_signature(call, command, {"changes": parameters})

    return decorate


def _with_resources(command: Command) -> Command:
    """Return a command that opens the table and catalog of its signature, and prints its output."""
    hints = get_type_hints(command, include_extras=True, localns=_LAZY_TYPES)
    resources = (_OpenTable, _Location, _OpenCatalog)
    names = {hint: name for name, hint in hints.items() if hint in resources}
    table, catalog = names.get(_OpenTable, names.get(_Location)), names.get(_OpenCatalog)
    find = open_named if _OpenTable in names else locate_named
    takes_storage = "storage" in hints
    returns_output = hints["return"] is Output
    if not (table or catalog or takes_storage or returns_output):
        return command
    storage_parameters = [
        _parameter("storage_options_file", OptionsFile, None),
        _parameter("storage_option", OptionPairs, None),
    ]
    url_parameter = _parameter("url", CatalogUrl, None)
    replaced: dict[str, Sequence[Parameter]] = {"storage": storage_parameters}
    if table:
        replaced[table] = [_parameter(table, NameOrUri)]
    if catalog:
        replaced[catalog] = [url_parameter]

    @wraps(command)
    def call(**values: Any) -> None:
        as_json = returns_output and values.pop("as_json")
        with ExitStack() as stack:
            if table or takes_storage:
                file, pairs = values.pop("storage_options_file"), values.pop("storage_option")
                storage = storage_options(file, pairs)
                if table:
                    values[table], _ = find(values[table], values.pop("url"), storage)
                    values = with_region_ids(
                        getattr(values[table], "location", values[table]), values
                    )
                else:
                    values["storage"] = storage
            if catalog:
                values[catalog] = stack.enter_context(open_catalog(values.pop("url")))
            output = command(**values)
        if output is not None:
            output.print(as_json=as_json)

    last = [*storage_parameters, url_parameter] if table else []
    if returns_output:
        last.append(_parameter("as_json", AsJson, False))
    return _with_signature(call, command, replaced, last=last)


def _with_signature(
    call: Callable[..., Output | None],
    command: Command,
    replaced: Mapping[str, Sequence[Parameter]],
    *,
    last: Sequence[Parameter] = (),
) -> Command:
    """Give a function the parameters of a command, some of them replaced, and then ``last``."""
    hints = get_type_hints(command, include_extras=True, localns=_LAZY_TYPES)
    parameters: list[Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        parameters += replaced.get(name) or [_parameter(name, hints[name], parameter.default)]
    parameters += last
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__annotations__["return"] = hints["return"]
    return call  # type: ignore[return-value]


def _parameter(name: str, annotation: object, default: object = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _option_parameter(job: type[JobOptions], name: str, option: Option) -> Parameter:
    help = help_of(job, name, option)
    settings: dict[str, Any] = {"help": f"{help[0].upper()}{help[1:]}."}
    if option.kind is not OptionKind.SWITCH:
        settings["metavar"] = "FILE" if option.kind is OptionKind.RULES else metavar_of(option)
    if option.kind in (OptionKind.COUNT, OptionKind.SECONDS):
        if option.optional:
            settings["parser"] = partial(_number_or_none, option)
        else:
            settings["min"] = option.low
    if option.kind is OptionKind.REGIONS:
        settings |= {
            "metavar": "REGION",
            "parser": RegionName.parse,
            "autocompletion": region_ids,
        }
    annotation: object = Annotated[
        _TYPES[option.kind], typer.Option(flag_of(name, option), **settings)
    ]
    return _parameter(name, annotation, False if option.kind is OptionKind.SWITCH else None)


def _number_or_none(option: Option, text: str) -> float | str:
    """Parse a number; the word for None stays, since None means that the option is not given."""
    if text == NONE:
        return text
    return int(text) if option.kind is OptionKind.COUNT else float(text)


def _value(option: Option, value: object) -> object:
    """Return the value of an option; None when it was not set."""
    if option.kind is OptionKind.SWITCH:
        return value or None
    if value is None:
        return None
    if option.kind is OptionKind.RULES:
        return read_rules(f"@{value}")
    return tuple(value) if isinstance(value, list) else value
