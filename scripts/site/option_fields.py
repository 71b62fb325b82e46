"""Griffe extension: the fields of dataclasses in the reference, with their types and help.

The fields of options classes and of the policy are told of where they are defined, in the metadata
of the field, and not in the docstring of the class. A method that takes such fields as keywords
(``@keywords_of``) gets them as parameters. Fields of other dataclasses have docstrings of their
own, which become one table of the class.
"""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import Any

import griffe

from memwal.jobs.options import options_of

_MODULES = ("memwal.jobs.options", "memwal.jobs.policy", "memwal.table")


class OptionFields(griffe.Extension):
    """Tells the fields of a class in one table: from their docstrings, or their metadata."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Move the docstrings of the fields of a dataclass into its own, and add its options."""
        if cls.docstring is None or not any(
            decorator.callable_path == "dataclasses.dataclass" for decorator in cls.decorators
        ):
            return
        entries = []
        for field in cls.attributes.values():
            if field.docstring is not None and "property" not in field.labels:
                entries += _entry(field.name, str(field.annotation), field.docstring.value)
                field.docstring = None
        if entries:
            cls.docstring.value = "\n".join([cls.docstring.value, *_header("Attributes"), *entries])
        if cls.module.path in _MODULES:
            made = getattr(importlib.import_module(cls.module.path), cls.name)
            if options_of(made):
                cls.docstring.value = _with_fields(cls.docstring.value, "Attributes", made)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Put the fields of options in the place of the options object."""
        if func.module.path != "memwal.table":
            return
        for decorator in func.decorators:
            if decorator.callable_path.endswith("keywords_of"):
                name = str(decorator.value).removeprefix("keywords_of(").removesuffix(")")
                made = getattr(importlib.import_module("memwal.table"), name)
                func.parameters = griffe.Parameters(func.parameters[0], *_parameters(made))
                if func.docstring:
                    text = func.docstring.value
                    func.docstring.value = _with_fields(text, "Parameters", made)


def _parameters(made: Any) -> list[griffe.Parameter]:
    return [
        griffe.Parameter(
            field.name,
            annotation=str(field.type),
            kind=griffe.ParameterKind.keyword_only,
            default=getattr(field.default, "__name__", repr(field.default)),
        )
        for field in fields(made)
    ]


def _with_fields(docstring: str, title: str, made: Any) -> str:
    """Return a numpy docstring with a section of all fields; one that it has is its last."""
    options = options_of(made)
    lines = [docstring] if f"{title}\n---" in docstring else [docstring, *_header(title)]
    for field in fields(made):
        if f"\n{field.name} : " in docstring:
            continue
        help = options[field.name].help if field.name in options else _help_elsewhere(field.name)
        lines += _entry(field.name, str(field.type), f"{help[0].upper()}{help.rstrip('.')[1:]}.")
    return "\n".join(lines)


def _header(title: str) -> list[str]:
    return ["", title, "-" * len(title)]


def _entry(name: str, type_: str, text: str) -> list[str]:
    return [f"{name} : {type_}", *(f"    {line}" for line in text.splitlines())]


def _help_elsewhere(name: str) -> str:
    """Return the help of a field that has no option: the docstrings of the classes tell of it."""
    return f"``{name}`` of the options of the job"
