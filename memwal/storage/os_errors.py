"""What an error of the operating system means to the caller."""

from __future__ import annotations

import errno

from memwal.errors import (
    InvalidInputError,
    MemWalError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
)

# EFBIG is how a file size limit (ulimit -f) answers: to the caller it is a quota like any other.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE})
_NAME = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})


def from_os_error(error: OSError, action: str, path: str) -> MemWalError:
    """Return the error to raise for a failed system call.

    Parameters
    ----------
    error : OSError
        What the system said.
    action : str
        What was tried, such as ``"store"``; it completes "cannot ... the path".
    path : str
        The file or folder.
    """
    said = error.strerror or type(error).__name__
    what = f"cannot {action} {path}: {said}"
    code = error.errno
    if code in _FULL:
        return StoreFullError(f"{what}; free space or raise the quota, then try again")
    if code in _ACCESS:
        return StoreAccessError(f"{what}; give this user read and write access to the table")
    if code == errno.ENOENT:
        return ObjectNotFoundError(what)
    if code == errno.EEXIST:
        return ObjectExistsError(what)
    if code in _NAME:
        return InvalidInputError(f"{what}; a file stands where a folder must, or the name is bad")
    if code in _TOO_MANY:
        return StoreUnavailableError(f"{what}; raise the limit of open files (ulimit -n)")
    return StoreUnavailableError(f"{what}; look at the disk and the system's log, then try again")
