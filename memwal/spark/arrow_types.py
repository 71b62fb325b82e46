"""Convert Arrow types and batches to those of Spark."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as st  # noqa: TID253 - only the data source imports this module

from memwal.errors import InvalidInputError

_MAX_PRECISION: Final = 38
# Extension types whose storage type carries all of the value.
_PLAIN_EXTENSIONS: Final = ("arrow.json", "arrow.uuid")


class UnsupportedTypeError(Exception):
    """Spark has no type for an Arrow type; never leaves this module."""


def spark_schema(schema: pa.Schema, *, omit_unsupported: bool = False) -> st.StructType:
    """Return the schema of the data frame for rows of ``schema``.

    Unsigned integers take the next wider type (64 bits: ``decimal(20,0)``), half floats become
    floats, fixed-size, large and view types their plain forms, dictionaries their values. A
    timestamp with a zone is Spark's ``timestamp``, one without is ``timestamp_ntz``.
    InvalidInputError names all columns that Spark has no type for, unless they are omitted.
    """
    fields = []
    unsupported = []
    for field in schema:
        try:
            kind = _spark_type(field.type, top=True)
        except UnsupportedTypeError as error:
            unsupported.append(f"{field.name!r} ({error})")
        else:
            fields.append(st.StructField(field.name, kind, field.nullable))
    if unsupported and not omit_unsupported:
        raise InvalidInputError(
            f"Spark has no type for these columns: {', '.join(unsupported)}; leave them out with "
            ".option('omit_unsupported', 'true') or name the others as .option('columns', ...)"
        )
    return st.StructType(fields)


def check_schema(schema: st.StructType, own_schema: st.StructType) -> None:
    """Refuse a schema of the user with another type, or not nullable although the table's is."""
    for field, own in zip(schema, own_schema, strict=True):
        same = _nullable(field.dataType) == _nullable(own.dataType)
        if not same or (own.nullable and not field.nullable):
            null = "" if own.nullable else " not null"
            raise InvalidInputError(
                f"column {own.name!r} is {own.dataType.simpleString()}{null} in the table, not "
                f"{field.dataType.simpleString()}{'' if field.nullable else ' not null'}: cast it "
                "after the load"
            )


def to_spark(batch: pa.RecordBatch, schema: pa.Schema, *, truncate: bool) -> pa.RecordBatch:
    """Convert a batch to the types that Spark expects: ``schema`` is made by Spark.

    With ``truncate``, times are cut to microseconds. InvalidInputError names the column of a value
    that does not fit.
    """
    if not schema.names:
        return batch.select([]).replace_schema_metadata(None)
    columns = [_cast(batch.column(field.name), field, truncate) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field, truncate: bool) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type, safe=not truncate)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"a value of column {field.name!r} does not fit into what Spark has for it: {error}; "
            "where it is nanoseconds, cut them off with .option('truncate_nanoseconds', 'true')"
        ) from error


def _spark_type(kind: pa.DataType, *, top: bool = False) -> st.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        if top and kind.extension_name in _PLAIN_EXTENSIONS:
            return _spark_type(kind.storage_type)
        raise UnsupportedTypeError(f"extension type {kind.extension_name}")
    if pt.is_dictionary(kind):
        return _spark_type(kind.value_type)
    if (
        pt.is_list(kind)
        or pt.is_large_list(kind)
        or pt.is_fixed_size_list(kind)
        or pt.is_list_view(kind)
        or pt.is_large_list_view(kind)
    ):
        return st.ArrayType(_spark_type(kind.value_type), True)
    if pt.is_map(kind):
        return st.MapType(_spark_type(kind.key_type), _spark_type(kind.item_type), True)
    if pt.is_struct(kind):
        return st.StructType([st.StructField(f.name, _spark_type(f.type), True) for f in kind])
    if pt.is_decimal(kind):
        if kind.precision > _MAX_PRECISION or not 0 <= kind.scale <= kind.precision:
            raise UnsupportedTypeError(str(kind))
        return st.DecimalType(kind.precision, kind.scale)
    if pt.is_timestamp(kind):
        return st.TimestampType() if kind.tz else st.TimestampNTZType()
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return st.StringType()
    if (
        pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_binary_view(kind)
        or pt.is_fixed_size_binary(kind)
    ):
        return st.BinaryType()
    return _simple_type(kind)


def _simple_type(kind: pa.DataType) -> st.DataType:
    if pt.is_boolean(kind):
        return st.BooleanType()
    if pt.is_int8(kind):
        return st.ByteType()
    if pt.is_int16(kind) or pt.is_uint8(kind):
        return st.ShortType()
    if pt.is_int32(kind) or pt.is_uint16(kind):
        return st.IntegerType()
    if pt.is_int64(kind) or pt.is_uint32(kind):
        return st.LongType()
    if pt.is_uint64(kind):
        return st.DecimalType(20, 0)
    if pt.is_float16(kind) or pt.is_float32(kind):
        return st.FloatType()
    if pt.is_float64(kind):
        return st.DoubleType()
    if pt.is_date(kind):
        return st.DateType()
    if pt.is_duration(kind):
        return st.DayTimeIntervalType()
    if pt.is_null(kind):
        return st.NullType()
    # Times of day are among these: Spark 4.3 has a type for them that is switched off.
    raise UnsupportedTypeError(str(kind))


def _nullable(kind: st.DataType) -> st.DataType:
    """Return the type with nulls allowed at every level."""
    if isinstance(kind, st.ArrayType):
        return st.ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, st.MapType):
        return st.MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    if isinstance(kind, st.StructType):
        return st.StructType(
            [st.StructField(field.name, _nullable(field.dataType), True) for field in kind]
        )
    return kind
