"""The region ids that LanceDB derives, so that every client of a table writes to the same regions.

LanceDB keeps no list of regions: it computes a version-5 UUID from the name of a bucket, from an
identity value, or from a constant, under one fixed namespace. Two writers that disagree about the
id of a bucket would put one primary key into two regions, and merging would then let the older row
win, so these names are part of the format.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Final
from uuid import UUID

from memwal.errors import InvalidInputError

_NAMESPACE: Final = UUID("4c534d57-5249-5445-5f53-484152443031")


def _derive(name: bytes) -> UUID:
    """Return the version-5 UUID of a name that need not be text (RFC 9562, section 5.5).

    ``uuid.uuid5`` takes bytes only since Python 3.12.
    """
    digest = sha1(_NAMESPACE.bytes + name, usedforsecurity=False).digest()
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


def unsharded_region_id() -> UUID:
    """Return :data:`UNSHARDED_ID`."""
    return UNSHARDED_ID
