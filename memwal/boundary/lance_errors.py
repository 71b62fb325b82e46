"""Translation of the exceptions of pylance into errors of memwal."""

from __future__ import annotations

import re

from memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    NewerFormatError,
    ObjectNotFoundError,
    ResourceLimitError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
    TableSetupError,
)
from memwal.util.log import redact_store_response

# Whole words and numbers only: paths are full of digits.
_FULL = re.compile(r"no space left|file too large|quota exceeded|\bos error (27|28|122)\b")
_LIMIT = re.compile(
    r"too many open files|cannot allocate memory|resources exhausted|memory allocation of"
    r"|can't start new thread|failed to spawn thread|can't spawn worker thread"
    r"|\bos error (12|23|24)\b"
)
_NO_ACCESS = re.compile(
    r"access ?denied|permission denied|invalidaccesskeyid|signaturedoesnotmatch|expiredtoken"
    r"|requesttimetooskewed|credentials source"
    r"|(?<![\w-])(401|403)(?![\w-])"
)

_ELSEWHERE = re.compile(
    r"authorizationheadermalformed|permanentredirect|illegallocationconstraint"
    r"|redirect without location"
)

# The request that a store refused, in errors of Lance, and the permission that it needs.
_REFUSED_REQUEST = re.compile(r"performing (GET|HEAD|PUT|POST|DELETE|LIST)(?: request)?\b")
_NEEDED_PERMISSIONS = {"PUT": "put", "POST": "put", "DELETE": "delete"}

# Lance's messages about features of a table, or of its files, that it does not know.
_NEWER = re.compile(
    r"(cannot be (read|written) by|not supported by) this (version|build) of lance"
    r"|unknown lance storage version|not supported: unknown|unsupported operation: unknown"
)

# Texts of several types of Lance's errors about damaged files.
_DAMAGED = re.compile(
    r"corrupt|failed to decode protobuf|for object of size|file size is too small"
    r"|does not appear to be a lance file|invalid magic|cannot read ranges"
    r"|outside (of )?(file|metadata region)|failed to fill whole buffer"
)

# Texts of Lance and Arrow if a dictionary has more values than its indices can number.
_TOO_MANY_VALUES = re.compile(
    r"dictionary key bigger than the key type|dictionaries cannot be combined"
    r"|dictionary indices use \d+ bits"
)

# The object that is missing, in errors of Lance about disks and about stores.
_MISSING = re.compile(r"Not found: (.+)|Object at location (.+?) not found")

# Positions in the source code of Lance and its libraries, which end their errors.
_SOURCE = re.compile(r",?\s*[^\s,]+\.rs:\d+(:\d+)?")
_MAX_LENGTH = 400


def translate_lance_error(error: Exception, doing: str) -> MemWalError:
    """Return the memwal error for an exception of pylance; an error of memwal as it is.

    Lance raises ``ValueError`` and ``OSError`` with the cause only in the text. The answer of a
    store is cut out of it, see :func:`~memwal.util.log.redact_store_response`.
    """
    if isinstance(error, MemWalError):
        return error
    redact_store_response(error)
    text = str(error)
    lowered = text.lower()
    if _FULL.search(lowered):
        return StoreFullError(f"{doing}: no space left; free some, then try again")
    if _NEWER.search(lowered):
        return NewerFormatError(
            f"{doing}: {_shortened(error)}; upgrade memwal and pylance, or use those that wrote it"
        )
    if _LIMIT.search(lowered):
        return limit_error(error, doing)
    if _DAMAGED.search(lowered):
        return CorruptDataError(
            f"{doing}: {_shortened(error)}; nothing was changed; run memwal verify, which "
            "looks at every file that the table names"
        )
    if _TOO_MANY_VALUES.search(lowered):
        return TableSetupError(
            f"{doing}: a column is a dictionary whose indices cannot number all of its values; "
            "store the rows in a table that memwal creates, where such a column has plain values"
        )
    if "__lance_mem_wal system index does not exist" in lowered:
        return TableSetupError(
            f"{doing}: MemWAL was taken away from the table while this ran; nothing was changed. "
            "Enable it again with memwal.enable(uri), then try again"
        )
    if "invalid user input" in lowered or "not enough rows to train" in lowered:
        return InvalidInputError(f"{doing}: {_shortened(error)}")
    if "nosuchbucket" in lowered or "containernotfound" in lowered:
        return TableSetupError(f"{doing}: create the bucket or container, or correct the address")
    if _ELSEWHERE.search(lowered):
        return TableSetupError(f"{doing}: the bucket is in another region: set aws_region to it")
    if "not found" in lowered or "no such file" in lowered or "notfound" in lowered:
        missing = _MISSING.search(_shortened(error))
        name = "" if missing is None else f"{missing[1] or missing[2]} "
        return ObjectNotFoundError(f"{doing}: {name}not found")
    if _NO_ACCESS.search(lowered):
        return StoreAccessError(
            f"{doing}: access denied; check the credentials of the table, {_lacking_right(text)}; "
            "memwal rights tells what each role needs"
        )
    return StoreUnavailableError(f"{doing}: {_shortened(error)}")


def is_limit(error: BaseException) -> bool:
    """Return whether the process has reached its limit of open files, memory or threads."""
    return isinstance(error, MemoryError) or _LIMIT.search(str(error).lower()) is not None


def limit_error(error: BaseException, doing: str) -> ResourceLimitError:
    """Return the memwal error for an error of :func:`is_limit`."""
    return ResourceLimitError(
        f"{doing}: {first_line(error)[:_MAX_LENGTH]}; the process has no more open files, memory "
        "or threads: raise its limits (ulimit -n, ulimit -u, the container's memory), or do less "
        "at once"
    )


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of Lance, whose type no Python module exports."""
    return type(error).__name__ == "PanicException"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without places in Lance's source."""
    lines = str(error).splitlines()
    return _SOURCE.sub("", lines[0]) if lines else type(error).__name__


def _shortened(error: Exception) -> str:
    return first_line(error)[:_MAX_LENGTH]


def _lacking_right(text: str) -> str:
    """Return the missing permission, for the message, as far as an error of Lance shows it."""
    request = _REFUSED_REQUEST.search(text)
    if request is None:
        return "and what they allow"
    needed = _NEEDED_PERMISSIONS.get(request[1], "get or list")
    return f"which lack the right to {needed} objects there"
