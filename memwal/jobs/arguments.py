"""Options of a job as arguments of a command line, and back.

The driver of a Spark application gets its options this way: :func:`to_arguments` writes the
arguments that :func:`parse_options` reads.
"""

from __future__ import annotations

import json
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction, Namespace
from typing import Any, Final, TypeVar
from uuid import UUID

from memwal.jobs.options import JobOptions, Option, OptionKind, default_of, options_of
from memwal.quality.rules import read_rules

Options = TypeVar("Options", bound=JobOptions)

NONE: Final = "none"
"""Word for None, among the values of an option that takes numbers."""


def flag_of(name: str, option: Option) -> str:
    """Return the name of an option on a command line, such as ``--commit-bytes``."""
    return f"--{(option.argument or name).replace('_', '-')}"


def help_of(cls: type[JobOptions], name: str, option: Option) -> str:
    """Return the help text of an option, with its default if that is a number."""
    default = default_of(cls, name)
    if option.kind is OptionKind.REGIONS or option.kind is OptionKind.NAMES:
        return f"{option.help}; can be given again"
    if option.kind in (OptionKind.COUNT, OptionKind.SECONDS) and default is not None:
        return f"{option.help} (default: {default:.15g})"
    return option.help


def metavar_of(option: Option) -> str:
    """Return the placeholder of the value in a help text."""
    names = {
        OptionKind.REGIONS: "UUID",
        OptionKind.NAMES: "NAME",
        OptionKind.RULES: "JSON",
        OptionKind.TEXT: "URI",
    }
    return names.get(option.kind, "N")


def add_arguments(parser: ArgumentParser, cls: type[JobOptions]) -> None:
    """Add the options of a job to a parser."""
    for name, option in options_of(cls).items():
        more: dict[str, Any] = {"metavar": metavar_of(option)}
        match option.kind:
            case OptionKind.COUNT:
                more["type"] = lambda text: None if text == NONE else int(text)
            case OptionKind.SECONDS:
                more["type"] = lambda text: None if text == NONE else float(text)
            case OptionKind.SWITCH:
                more = {"action": BooleanOptionalAction}
            case OptionKind.REGIONS:
                more |= {"type": UUID, "action": "append"}
            case OptionKind.NAMES:
                more["action"] = "append"
            case OptionKind.RULES:
                more["required"] = not option.optional
        parser.add_argument(
            flag_of(name, option),
            dest=name,
            default=SUPPRESS,
            help=help_of(cls, name, option).replace("%", "%%"),
            **more,
        )


def parse_options(cls: type[Options], arguments: Namespace) -> Options:
    """Make the options of a job from the namespace of a parser with :func:`add_arguments`.

    An absent option takes its default. Raises InvalidInputError if a value is out of its limits.
    """
    values: dict[str, Any] = {}
    for name, option in options_of(cls).items():
        if name not in arguments:
            continue
        value = getattr(arguments, name)
        match option.kind:
            case OptionKind.RULES:
                values[name] = read_rules(value)
            case OptionKind.REGIONS | OptionKind.NAMES:
                values[name] = tuple(value)
            case _:
                values[name] = value
    return cls(**values)


def to_arguments(options: JobOptions) -> list[str]:
    """Return the arguments that :func:`parse_options` makes these options of.

    Fields without an option, such as the guard, stay behind.
    """
    arguments: list[str] = []
    for name, option in options_of(options).items():
        value = getattr(options, name)
        flag = flag_of(name, option)
        if value is None:
            if default_of(options, name) is not None:
                arguments += [flag, NONE]
            continue
        match option.kind:
            case OptionKind.SWITCH:
                arguments.append(flag if value else f"--no-{flag.removeprefix('--')}")
            case OptionKind.REGIONS | OptionKind.NAMES:
                for element in value:
                    arguments += [flag, str(element)]
            case OptionKind.RULES:
                arguments += [flag, json.dumps(value.to_dict())]
            case OptionKind.COUNT | OptionKind.TEXT:
                arguments += [flag, str(value)]
            case OptionKind.SECONDS:
                # Every digit counts: "g" alone rounds from a million on.
                arguments += [flag, f"{value:.15g}"]
    return arguments
