"""What has to be known of a Lance file, or of a Lance schema, before Lance hands it over to Arrow.

Names and types go through Arrow's C interface, where a zero byte ends a text. At one within a name
Lance ends the whole process, which nothing in Python can catch.
"""

from __future__ import annotations

import re
import struct
from typing import Final

from memwal.errors import CorruptDataError
from memwal.format._messages import parse_message
from memwal.format._proto import lance_schema_pb2

_MAGIC: Final = b"LANC"
# Where columns and buffers are, how many there are, major and minor version, magic.
_FOOTER: Final = struct.Struct("<QQQIIHH4s")
_PLACE: Final = struct.Struct("<QQ")
# A name or a type with a zero byte in what Lance shows of a schema.
_SHOWN: Final = re.compile(r'(?:name: |LogicalType\()"(?:[^"\\]|\\[^0])*\\0')


def check_file(data: bytes, *, name: str) -> None:
    """Refuse a file that cannot be handed over.

    Parameters
    ----------
    data : bytes
        The whole file.
    name : str
        What error messages call it.

    Raises
    ------
    CorruptDataError
        The bytes are no Lance file, or a column has a zero byte in its name or type.
    """
    descriptor = parse_message(
        lance_schema_pb2.FileDescriptor, _first_buffer(data, name), name=name
    )
    for field in descriptor.schema.fields:
        if "\0" in field.name or "\0" in field.logical_type:
            raise _refused(name)


def check_schema(shown: str, *, name: str) -> None:
    """Refuse a schema that cannot be handed over.

    Parameters
    ----------
    shown : str
        What ``repr`` gives of it.
    name : str
        What error messages call the data set.

    Raises
    ------
    CorruptDataError
        A column has a zero byte in its name or type.
    """
    if "\\0" in shown and _SHOWN.search(shown) is not None:
        raise _refused(name)


def _first_buffer(data: bytes, name: str) -> bytes:
    start = len(data) - _FOOTER.size
    if start < 0 or not data.endswith(_MAGIC):
        raise CorruptDataError(f"{name} ({len(data)} bytes) is no Lance file; it may be cut off")
    _, _, places, *_ = _FOOTER.unpack_from(data, start)
    if places + _PLACE.size > len(data):
        raise CorruptDataError(f"{name} leads to byte {places} of {len(data)}; it is damaged")
    position, size = _PLACE.unpack_from(data, places)
    return data[position : position + size]


def _refused(name: str) -> CorruptDataError:
    return CorruptDataError(
        f"{name} has a column with a zero byte in its name or type, which Lance cannot read; it is "
        "damaged: restore it, or whatever it belongs to, from a backup"
    )
