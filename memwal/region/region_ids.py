"""Region ids that are derived, so that every client of a table writes to the same regions.

LanceDB keeps no list of regions: it computes a version-5 UUID from the name of a bucket, from an
identity value, or from a constant, under one fixed namespace. Two writers that disagree about the
id of a bucket would put one primary key into two regions, and merging would then let the older row
win, so these names are part of the format.

LanceDB's names leave out the spec, and exist for its own three transforms only. For any other spec
the name is the id of the spec and every region value with its kind, under a namespace of our own.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha1
from typing import Final
from uuid import UUID

from memwal.errors import InvalidInputError

_NAMESPACE: Final = UUID("4c534d57-5249-5445-5f53-484152443031")

_OWN_NAMESPACE: Final = UUID("6d656d77-616c-5b72-a567-696f6e732031")


def _derive(name: bytes, namespace: UUID = _NAMESPACE) -> UUID:
    """Return the version-5 UUID of a name that need not be text (RFC 9562, section 5.5).

    ``uuid.uuid5`` takes bytes only since Python 3.12.
    """
    digest = sha1(namespace.bytes + name, usedforsecurity=False).digest()
    return UUID(bytes=digest[:16], version=5)


UNSHARDED_ID: Final = _derive(b"unsharded")
"""Id of the only region of a table whose rows are not divided."""


def bucket_region_id(bucket: int) -> UUID:
    """Return the id of the region that holds one bucket.

    Parameters
    ----------
    bucket : int
        Bucket number, counted from 0. The id does not depend on how many buckets there are.

    Raises
    ------
    InvalidInputError
        If the number is negative.
    """
    if bucket < 0:
        raise InvalidInputError(
            f"bucket numbers start at 0, got {bucket}; pass the bucket of a row"
        )
    return _derive(b"bucket-%d" % bucket)


def identity_region_id(value: bytes) -> UUID:
    """Return the id of the region that holds one value of an identity column.

    Parameters
    ----------
    value : bytes
        The value: integers little-endian in the width of the column, booleans one byte, text in
        UTF-8. Text that is empty has a region of its own.
    """
    return _derive(b"identity-" + value)


def derived_region_id(spec_id: int, value_names: Iterable[bytes]) -> UUID:
    """Return the id of the region of a spec that LanceDB does not know.

    Parameters
    ----------
    spec_id : int
        Id of the region spec, positive.
    value_names : iterable of bytes
        Each region value, in the order of the spec's fields, as
        :func:`memwal.region.region_values.id_names` gives it.
    """
    return _derive(spec_id.to_bytes(4, "little") + b"".join(value_names), _OWN_NAMESPACE)


def unsharded_region_id() -> UUID:
    """Return :data:`UNSHARDED_ID`."""
    return UNSHARDED_ID
