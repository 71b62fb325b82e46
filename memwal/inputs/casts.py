"""Casts of columns to the types of a table that keep every value, or name the one that they cannot.

A cast is planned once for a pair of types, and then converts arrays by Arrow's kernels. A float may
be rounded to a narrower float, but not to infinity. Every other value stays the same value: Arrow's
own casts are checked where they would truncate, wrap or drop something without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.format.values import BLOB_TYPE, NO_VALUE, is_binary, is_text

Cast: TypeAlias = Callable[[pa.Array], pa.Array]
"""Converts an array, or raises one of :data:`CAST_ERRORS`."""

CAST_ERRORS: Final = (ValueError, TypeError, ArithmeticError, NotImplementedError)
"""Errors of Arrow for values that it cannot convert, and of the casts of this module."""

_MAX_SHOWN: Final = 60
_MAX_REASON: Final = 120
_TEXT: Final = (pt.is_string, pt.is_large_string, pt.is_string_view)
_BINARY: Final = (
    pt.is_binary,
    pt.is_large_binary,
    pt.is_binary_view,
    pt.is_fixed_size_binary,
)
_LISTS: Final = (
    pt.is_list,
    pt.is_large_list,
    pt.is_fixed_size_list,
    pt.is_list_view,
    pt.is_large_list_view,
)
# Whole numbers up to this one have a float of their own, by the width of the float in bits.
_MAX_EXACT: Final = {32: 2**24, 64: 2**53}


def plan_cast(source: pa.DataType, target: pa.DataType) -> Cast | None:
    """Return the cast of one type to another; None if their values have nothing in common.

    - Numbers become other numbers if the value is the same; only floats are rounded to floats.
    - A timestamp without a time zone is UTC, as for Arrow: in a column with a time zone it is that
      instant. A timestamp with a time zone does not go into a column without.
    - Dates become timestamps at midnight, and back; other units of time must be exact.
    - Texts, binary data and lists change their layout; lists of a fixed size need that length.
    - Structs have the same fields, in any order.
    - Dictionaries are decoded and encoded as needed; extension types are their storage.
    """
    if source == target:
        return lambda array: array
    if pt.is_null(source):
        return lambda array: pa.nulls(len(array), target)
    if getattr(target, "extension_name", None) == BLOB_TYPE and not pt.is_struct(source):
        return _plan_blob(source, target)
    if isinstance(source, pa.BaseExtensionType):
        return _chain(lambda array: array.storage, plan_cast(source.storage_type, target))
    if isinstance(target, pa.BaseExtensionType):
        wrap = pa.ExtensionArray.from_storage
        return _chain(plan_cast(source, target.storage_type), lambda array: wrap(target, array))
    if pt.is_dictionary(source):
        return _chain(_decode, plan_cast(source.value_type, target))
    if pt.is_dictionary(target):
        return _chain(plan_cast(source, target.value_type), _encoder(target))
    if pt.is_map(target) and (pt.is_map(source) or _is_any(source, _LISTS)):
        return _plan_map(source, target)
    if _is_any(source, _LISTS):
        return _plan_list(source, target) if _is_any(target, _LISTS[:3]) else None
    if pt.is_struct(source):
        return _plan_struct(source, target) if pt.is_struct(target) else None
    return _plan_leaf(source, target)


def _plan_blob(source: pa.DataType, target: pa.BaseExtensionType) -> Cast | None:
    """Return the cast of binary data to blobs, of texts to blobs at these addresses, or of blobs.

    Blobs have two parts, or four with a range of an address: one that is not there must be null.
    """
    is_blob = getattr(source, "extension_name", None) == BLOB_TYPE
    if not (is_blob or is_binary(source) or is_text(source)):
        return None

    def cast(array: pa.Array) -> pa.Array:
        parts = {"uri" if is_text(source) else "data": array}
        if is_blob:
            storage = array.storage
            parts = dict(zip([part.name for part in storage.type], storage.flatten(), strict=True))
        fields = [*target.storage_type]
        for name in parts.keys() - {field.name for field in fields}:
            if parts[name].null_count < len(array):
                raise pa.ArrowInvalid("the column keeps whole external blobs, and no ranges")
        arrays = [
            parts[field.name].cast(field.type)
            if field.name in parts
            else pa.nulls(len(array), field.type)
            for field in fields
        ]
        storage = pa.StructArray.from_arrays(arrays, fields=fields, mask=array.is_null())
        return pa.ExtensionArray.from_storage(target, storage)

    return cast


def cast_column(name: str, cast: Cast, array: pa.Array, target: pa.DataType, row: int) -> pa.Array:
    """Cast a column from row ``row`` on; InvalidInputError names the first misfit."""
    try:
        return cast(array)
    except CAST_ERRORS as error:
        at = first_failure(len(array), lambda start, end: cast(array.slice(start, end - start)))
        cause = _failure(cast, array.slice(at, 1)) or error
        raise misfit(name, row + at, array[at], target, cause) from error


def misfit(
    name: str, row: int, value: Any, target: pa.DataType, cause: Exception | None = None
) -> InvalidInputError:
    """Return the error for a value that does not fit; without a cause, none of its type does."""
    kind = value.type if isinstance(value, pa.Scalar) else type(value).__name__
    found = f"column {name}, row {row} (the first is 0): {show(value)}, of type {kind},"
    if cause is None:
        return InvalidInputError(
            f"{found} cannot be stored in a column of type {target}; convert it before the call, "
            "or leave the row out"
        )
    reason = (str(cause).splitlines() or [type(cause).__name__])[0].rstrip(".")[:_MAX_REASON]
    return InvalidInputError(
        f"{found} would not stay the same value in a column of type {target}: {reason}; "
        "correct it, or leave the row out"
    )


def _failure(cast: Cast, array: pa.Array) -> Exception | None:
    try:
        cast(array)
    except CAST_ERRORS as error:
        return error
    return None


def show(value: Any) -> str:
    """Return a value as a short text for a message."""
    if isinstance(value, pa.Scalar):
        try:
            value = value.as_py()
        except (ValueError, ArithmeticError):
            value = NO_VALUE
    try:
        text = " ".join(repr(value).split())
    except Exception:
        # A class of the caller may fail to describe its objects.
        text = f"a {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def first_failure(length: int, attempt: Callable[[int, int], object]) -> int:
    """Return the position of the first value at which an attempt fails, by halving.

    The attempt gets the start and the end of a part, in which it fails if a value of it cannot be
    cast; all values before the part can be.
    """
    start, end = 0, length
    while end - start > 1:
        middle = (start + end) // 2
        try:
            attempt(start, middle)
        except CAST_ERRORS:
            end = middle
        else:
            start = middle
    return start


@overload
def _chain(first: Cast, second: Cast) -> Cast: ...


@overload
def _chain(first: Cast | None, second: Cast | None) -> Cast | None: ...


def _chain(first: Cast | None, second: Cast | None) -> Cast | None:
    """Return one cast after the other; None if there is none of them."""
    if first is None or second is None:
        return None
    return lambda array: second(first(array))


def _is_any(kind: pa.DataType, checks: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(is_(kind) for is_ in checks)


# Nested types


def _plan_list(source: pa.DataType, target: pa.DataType) -> Cast | None:
    inner = plan_cast(source.value_type, target.value_type)
    if inner is None:
        return None
    if not pt.is_fixed_size_list(target):
        make = pa.LargeListArray if pt.is_large_list(target) else pa.ListArray
        return lambda array: make.from_arrays(
            _offsets(array, target), inner(array.flatten()), type=target, mask=_mask(array)
        )
    size = target.list_size

    def to_fixed_size(array: pa.Array) -> pa.Array:
        lengths = array.value_lengths()
        if pc.any(pc.not_equal(lengths, size)).as_py():
            raise ValueError(f"it does not have {size} values")
        values = inner(array.flatten())
        if array.null_count:
            # A list that is null takes as much room as any other.
            at = np.full((len(array), size), -1, np.int64)
            present = array.is_valid().to_numpy(zero_copy_only=False)
            at[present] = np.arange(len(values)).reshape(-1, size)
            values = values.take(pa.array(at.ravel(), mask=at.ravel() < 0))
        return pa.FixedSizeListArray.from_arrays(values, type=target, mask=_mask(array))

    return to_fixed_size


def _plan_map(source: pa.DataType, target: pa.DataType) -> Cast | None:
    is_map = pt.is_map(source)
    pair = pa.struct([source.key_field, source.item_field]) if is_map else source.value_type
    if pt.is_null(pair):
        pair = pa.struct([("key", pa.null()), ("value", pa.null())])
    if not pt.is_struct(pair) or pair.num_fields != 2:
        return None
    casts = [
        plan_cast(pair.field(0).type, target.key_type),
        plan_cast(pair.field(1).type, target.item_type),
    ]
    keys, items = casts
    if keys is None or items is None:
        return None

    def to_map(array: pa.Array) -> pa.Array:
        if is_map:
            # Arrow flattens no map.
            entries = pa.StructArray.from_arrays([array.keys, array.items], fields=list(pair))
            array = pa.Array.from_buffers(
                pa.list_(pair),
                len(array),
                array.buffers()[:2],
                offset=array.offset,
                children=[entries],
            )
        pairs = array.flatten()
        parts = (
            [pa.nulls(len(pairs))] * 2 if pt.is_null(pairs.type) else [*map(pairs.field, range(2))]
        )
        if parts[0].null_count or pairs.null_count:
            raise ValueError("a key of the map is null")
        return pa.MapArray.from_arrays(
            _offsets(array, target),
            keys(parts[0]),
            items(parts[1]),
            type=target,
            mask=_mask(array),
        )

    return to_map


def _plan_struct(source: pa.DataType, target: pa.DataType) -> Cast | None:
    names = [field.name for field in target]
    if sorted(field.name for field in source) != sorted(names) or len(set(names)) != len(names):
        return None
    at = [source.get_field_index(name) for name in names]
    casts = [plan_cast(source.field(n).type, f.type) for n, f in zip(at, target, strict=True)]
    field_casts = [cast for cast in casts if cast is not None]
    if len(field_casts) != len(casts):
        return None

    def to_struct(array: pa.Array) -> pa.Array:
        parts = array.flatten()
        return pa.StructArray.from_arrays(
            [cast(parts[n]) for cast, n in zip(field_casts, at, strict=True)],
            fields=list(target),
            mask=_mask(array),
        )

    return to_struct


def _offsets(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return where each list starts in ``array.flatten()``, which leaves null lists out."""
    lengths = array.value_lengths().fill_null(0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return pa.array(offsets, pa.int64() if pt.is_large_list(target) else pa.int32())


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _decode(array: pa.Array) -> pa.Array:
    values = array.dictionary
    if pt.is_string_view(values.type) or pt.is_binary_view(values.type):
        # Arrow takes no values out of a view.
        large = pa.large_string() if pt.is_string_view(values.type) else pa.large_binary()
        return values.cast(large).take(array.indices).cast(values.type)
    return values.take(array.indices)


def _encoder(target: pa.DataType) -> Cast:
    def encode(array: pa.Array) -> pa.Array:
        encoded = array.dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            encoded.indices.cast(target.index_type), encoded.dictionary, ordered=target.ordered
        )

    return encode


# Single values


def _plan_leaf(source: pa.DataType, target: pa.DataType) -> Cast | None:
    if _is_any(source, _TEXT):
        return _arrow_cast(target) if _is_any(target, _TEXT) else None
    if _is_any(source, _BINARY):
        return _arrow_cast(target) if _is_any(target, _BINARY) else None
    if _is_number(source) and _is_number(target):
        return _plan_number(source, target)
    return _plan_time(source, target)


def _plan_number(source: pa.DataType, target: pa.DataType) -> Cast:
    if pt.is_float16(source):
        # Arrow computes with few kernels on these.
        single = pa.float32()
        widen = _arrow_cast(single)
        return widen if target == single else _chain(widen, _plan_number(single, target))
    if pt.is_integer(target):
        return _to_integer(source, target) if pt.is_floating(source) else _arrow_cast(target)
    if pt.is_integer(source):
        if pt.is_floating(target):
            return _and_back(lambda array: array.cast(target, safe=False), source)
        # Arrow wants room for every integer of the type; here each value has to fit.
        wide = pa.decimal256(76, max(target.scale, 0))
        return lambda array: array.cast(wide).cast(target)
    if pt.is_decimal(source) and pt.is_decimal(target):
        return _arrow_cast(target)
    if pt.is_floating(source) and pt.is_floating(target):
        return _arrow_cast(target) if target.bit_width > source.bit_width else _round(target)
    return _and_back(_arrow_cast(target), source)


def _to_integer(source: pa.DataType, target: pa.DataType) -> Cast:
    largest = _MAX_EXACT[source.bit_width]

    def to_integer(array: pa.Array) -> pa.Array:
        # A larger float stands for several integers: which one is not known.
        if pc.any(pc.greater(pc.abs(array), largest)).as_py():
            raise ValueError(f"above {largest} a float may stand for several integers")
        return array.cast(target)

    return to_integer


def _round(target: pa.DataType) -> Cast:
    def to_narrower(array: pa.Array) -> pa.Array:
        rounded = array.cast(target)
        # numpy looks through a column of vectors ten times as fast as Arrow does.
        infinite = np.isinf(rounded.to_numpy(zero_copy_only=False))
        if infinite.any() and np.isfinite(array.to_numpy(zero_copy_only=False))[infinite].any():
            raise OverflowError(f"it is out of the range of {target}")
        return rounded

    return to_narrower


def _plan_time(source: pa.DataType, target: pa.DataType) -> Cast | None:
    if pt.is_timestamp(source) and pt.is_timestamp(target):
        return None if source.tz is not None and target.tz is None else _arrow_cast(target)
    if pt.is_date(source) and (pt.is_date(target) or pt.is_timestamp(target)):
        return _and_back(_arrow_cast(target), source)
    if pt.is_timestamp(source) and source.tz is None and pt.is_date(target):
        return _and_back(_arrow_cast(target), source)
    for is_ in (pt.is_time, pt.is_duration):
        if is_(source) and is_(target):
            return _arrow_cast(target)
    return None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


def _arrow_cast(target: pa.DataType) -> Cast:
    """Return a cast that Arrow refuses by itself if a value would change."""
    return lambda array: array.cast(target)


def _and_back(cast: Cast, source: pa.DataType) -> Cast:
    """Return a cast that is refused unless casting back gives the same values."""

    def checked(array: pa.Array) -> pa.Array:
        converted = cast(array)
        if not converted.cast(source).equals(array):
            raise ValueError("it would be rounded")
        return converted

    return checked
