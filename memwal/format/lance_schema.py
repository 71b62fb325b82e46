"""Changing single columns of a Lance schema in its stored form, keeping everything else."""

from __future__ import annotations

from memwal.format._messages import parse_message
from memwal.format._proto import lance_schema_pb2


def with_id(field: bytes, field_id: int) -> bytes:
    """The column with another field id."""
    message = parse_message(lance_schema_pb2.Field, field, name="a column of a Lance schema")
    message.id = field_id
    return message.SerializeToString(deterministic=True)


def made_nullable(field: bytes) -> bytes:
    """The column, allowed to hold nulls."""
    message = parse_message(lance_schema_pb2.Field, field, name="a column of a Lance schema")
    message.nullable = True
    return message.SerializeToString(deterministic=True)
