"""How much memory all that reads keep may take together."""

from __future__ import annotations

import os
from typing import Final

from memwal.errors import InvalidInputError

CACHE_VARIABLE = "MEMWAL_READ_CACHE_BYTES"
"""Environment variable with the bytes; :data:`DEFAULT_BYTES` unless it is set."""

DEFAULT_BYTES: Final = 3 << 30
"""As much as the limits of the single kinds add up to."""


def cache_budget() -> int:
    """Bytes that this process may keep for later reads.

    Raises
    ------
    InvalidInputError
        The environment variable is no number of bytes.
    """
    told = os.environ.get(CACHE_VARIABLE)
    if not told:
        return DEFAULT_BYTES
    if not told.isdecimal():
        raise InvalidInputError(
            f"{CACHE_VARIABLE} is {told!r}; set it to a number of bytes, such as 1073741824"
        )
    return int(told)
