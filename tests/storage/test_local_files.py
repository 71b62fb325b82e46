import errno
import os

import pytest

from memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    ObjectExistsError,
    ObjectNotFoundError,
    ResourceLimitError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
)
from memwal.storage.local_files import from_os_error


@pytest.mark.parametrize(
    ("code", "expected", "advice"),
    [
        (errno.ENOSPC, StoreFullError, "free space"),
        (errno.EDQUOT, StoreFullError, "quota"),
        (errno.EFBIG, StoreFullError, "quota"),
        (errno.EACCES, StoreAccessError, "read and write access"),
        (errno.EPERM, StoreAccessError, "read and write access"),
        (errno.EROFS, StoreAccessError, "read and write access"),
        (errno.ENOENT, ObjectNotFoundError, "cannot read"),
        (errno.EEXIST, ObjectExistsError, "cannot read"),
        (errno.ENAMETOOLONG, InvalidInputError, "name"),
        (errno.ELOOP, CorruptDataError, "restore"),
        (errno.EMFILE, ResourceLimitError, "ulimit -n"),
        (errno.ENOMEM, ResourceLimitError, "memory"),
        (errno.EIO, StoreUnavailableError, "disk"),
        (errno.ESTALE, StoreUnavailableError, "try again"),
    ],
)
def test_every_error_says_what_to_do(code: int, expected: type[MemWalError], advice: str) -> None:
    error = from_os_error(OSError(code, os.strerror(code)), "read", "/data/t/a")

    assert type(error) is expected
    assert str(error).startswith(f"cannot read /data/t/a: {os.strerror(code)}")
    assert advice in str(error)
