"""Values that a type allows and a table cannot keep.

A row that was acknowledged must be flushed some day. What would keep a flush from succeeding is
therefore refused before it goes to the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import InvalidInputError

Check: TypeAlias = Callable[[pa.Array], str | None]
"""Tells what is wrong with the values of a column."""


_FEW_VALUES = 4


def checks_of(field: pa.Field, *, null_structs: bool) -> tuple[Check, ...]:
    """What the values of a column must be looked through for; nothing for most types.

    Parameters
    ----------
    null_structs : bool
        Whether the table's files can hold structs that are null.
    """
    found: list[Check] = []
    if _holds(field.type, lambda kind: pt.is_string(kind) or pt.is_large_string(kind)):
        found.append(_not_utf8)
    if _holds(field.type, lambda kind: isinstance(kind, pa.JsonType)):
        found.append(_not_json)
    if _has_required(field.type) or (not null_structs and _holds(field.type, pt.is_struct)):
        found.append(lambda values: _null_inside(values, field, null_structs))
    return tuple(found)


def check_values(name: str, values: pa.Array, checks: Iterable[Check]) -> None:
    """Refuse values that cannot be kept.

    Raises
    ------
    InvalidInputError
        The message names the column, and shows no value.
    """
    for check in checks:
        problem = check(values)
        if problem is not None:
            raise InvalidInputError(f"column {name} has {problem}; mend or leave out those rows")


def _not_utf8(values: pa.Array) -> str | None:
    try:
        if len(values) <= _FEW_VALUES and not pt.is_dictionary(values.type):
            # Arrow gives the interpreter to other threads while it looks, which costs more.
            values.to_pylist()
        else:
            values.validate(full=True)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return "text that is no UTF-8"
    return None


def _not_json(values: pa.Array) -> str | None:
    try:
        for text in getattr(values, "storage", values).to_pylist():
            if text is not None:
                json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return "text that is no JSON"
    return None


def _null_inside(values: pa.Array, field: pa.Field, null_structs: bool) -> str | None:
    """Nulls in children that may have none, or structs that are null where none may be."""
    values = getattr(values, "storage", values)
    kind = values.type
    if pt.is_struct(kind):
        if values.null_count and not null_structs:
            return "structs that are null, which the table's file version cannot hold"
        # A child of a struct that is null is null itself, and may be.
        present = values.drop_null() if values.null_count else values
        children = list(zip(kind, present.flatten(), strict=True))
    elif pt.is_map(kind):
        children = [(kind.item_field, values.items)]
    elif pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        children = [(kind.value_field, values.flatten())]
    else:
        return None
    for child, part in children:
        if not child.nullable and part.null_count:
            return f"nulls in {child.name}, which may have none"
        problem = _null_inside(part, child, null_structs)
        if problem is not None:
            return problem
    return None


def _has_required(kind: pa.DataType) -> bool:
    kind = getattr(kind, "storage_type", kind)
    children = [kind.field(number) for number in range(kind.num_fields)]
    if pt.is_map(kind):
        children = [kind.item_field]
    return any(not child.nullable or _has_required(child.type) for child in children)


def _holds(kind: pa.DataType, is_: Callable[[pa.DataType], bool]) -> bool:
    if is_(kind):
        return True
    if pt.is_dictionary(kind):
        return _holds(kind.value_type, is_)
    kind = getattr(kind, "storage_type", kind)
    return is_(kind) or any(_holds(kind.field(n).type, is_) for n in range(kind.num_fields))
