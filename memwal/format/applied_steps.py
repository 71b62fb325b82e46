"""Which steps of which sources a region has: text in the metadata of log entries, and in books.

JSON: an object from the name of each source to the version of its newest step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from memwal.errors import CorruptDataError
from memwal.format.wal_layout import MAX_U64
from memwal.given_data import read_json

AppliedSteps = Mapping[str, int]
"""Version of the newest step that was applied, by source."""


def encode_applied(applied: AppliedSteps) -> bytes:
    """Return the text of what was applied."""
    return json.dumps(dict(applied), sort_keys=True, separators=(",", ":")).encode()


def decode_applied(data: bytes, *, name: str) -> dict[str, int]:
    """Read what :func:`encode_applied` wrote.

    Parameters
    ----------
    data : bytes
    name : str
        Of the object it stands in, for the error.

    Raises
    ------
    CorruptDataError
        It is no such text.
    """
    try:
        found = read_json(data)
    except ValueError as error:
        raise _unreadable(name, str(error)) from error
    if not isinstance(found, dict):
        raise _unreadable(name, "it is no object")
    for source, version in found.items():
        if type(version) is not int or not 0 <= version <= MAX_U64:
            raise _unreadable(name, f"the version of {source!r} is {version!r}")
    return found


def newest_steps(one: AppliedSteps, other: AppliedSteps) -> dict[str, int]:
    """The newest step of each source, of two accounts of one region."""
    found = dict(one)
    for source, version in other.items():
        found[source] = max(version, found.get(source, version))
    return found


def _unreadable(name: str, reason: str) -> CorruptDataError:
    return CorruptDataError(
        f"{name} does not tell which steps were applied: {reason}; keep the object and look at it"
    )
