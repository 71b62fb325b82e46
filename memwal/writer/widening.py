"""Which types of a caller's columns become the table's without loss."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from memwal.errors import InvalidInputError

_CASTS_FAIL_WITH = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


def widened(name: str, array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A column in a type that its own :func:`widens` to.

    Raises
    ------
    InvalidInputError
        A value does not fit after all.
    """
    if pt.is_null(array.type):
        return pa.nulls(len(array), wanted)
    try:
        return array.cast(wanted)
    except _CASTS_FAIL_WITH as error:
        raise InvalidInputError(f"column {name}: {error}") from error


def widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of one type is the same value in the other."""
    if pt.is_null(given):
        return True
    if isinstance(given, pa.BaseExtensionType):
        return given.storage_type == wanted or widens(given.storage_type, wanted)
    if isinstance(wanted, pa.BaseExtensionType):
        return False
    if pt.is_dictionary(given):
        return widens(given.value_type, wanted)
    if pt.is_dictionary(wanted):
        return widens(given, wanted.value_type)
    text = (pt.is_string, pt.is_large_string, pt.is_string_view)
    binary = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
    if any(is_(given) for is_ in text):
        return any(is_(wanted) for is_ in text)
    if any(is_(given) for is_ in binary):
        return any(is_(wanted) for is_ in binary[:3])
    if pt.is_integer(given) and pt.is_integer(wanted):
        if pt.is_signed_integer(given):
            return bool(pt.is_signed_integer(wanted) and wanted.bit_width >= given.bit_width)
        if pt.is_signed_integer(wanted):
            return bool(wanted.bit_width > given.bit_width)
        return bool(wanted.bit_width >= given.bit_width)
    if pt.is_floating(given) and pt.is_floating(wanted):
        return bool(wanted.bit_width >= given.bit_width)
    if pt.is_timestamp(given) and pt.is_timestamp(wanted):
        units = ["s", "ms", "us", "ns"]
        return given.tz == wanted.tz and units.index(wanted.unit) >= units.index(given.unit)
    if (pt.is_list(given) or pt.is_large_list(given)) and (
        pt.is_list(wanted) or pt.is_large_list(wanted)
    ):
        return given.value_type == wanted.value_type or widens(given.value_type, wanted.value_type)
    if pt.is_fixed_size_list(given) and pt.is_fixed_size_list(wanted):
        return given.list_size == wanted.list_size and (
            given.value_type == wanted.value_type or widens(given.value_type, wanted.value_type)
        )
    if pt.is_struct(given) and pt.is_struct(wanted):
        return [f.name for f in given] == [f.name for f in wanted] and all(
            g.type == w.type or widens(g.type, w.type) for g, w in zip(given, wanted, strict=True)
        )
    return False
