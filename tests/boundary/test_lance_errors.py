"""Which error of memwal an exception of pylance is."""

import pytest

from memwal.boundary.lance_errors import translate_lance_error
from memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
    TableSetupError,
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Not found: /a/b, src/x.rs:1", ObjectNotFoundError),
        ("No such file or directory (os error 2)", ObjectNotFoundError),
        ("Generic S3 error: AccessDenied", StoreAccessError),
        ("response status 403 Forbidden", StoreAccessError),
        ("InvalidAccessKeyId", StoreAccessError),
        ("No space left on device (os error 28)", StoreFullError),
        ("File too large (os error 27)", StoreFullError),
        ("connection reset", StoreUnavailableError),
        (
            "Invalid user input: Cannot record SSTable compaction progress: the __lance_mem_wal "
            "system index does not exist on this table",
            TableSetupError,
        ),
        ("Arrow error: Dictionary key bigger than the key type", TableSetupError),
        (
            "Invalid user input: dictionary indices use 32 bits but the declared Int8 key type "
            "uses",
            TableSetupError,
        ),
        (
            "Encountered corrupt file dictionary: dictionary indices use 32 bits but the declared",
            CorruptDataError,
        ),
        ("Invalid user input: no such thing, /a/b.rs:1:2", InvalidInputError),
        ("Not enough rows to train PQ. Requires 256 rows but only 10 available", InvalidInputError),
        ("", StoreUnavailableError),
        (
            "timed out reading /t/_mem_wal/4038f403-0000-4403-8403-403403403403/40340340_gen_1",
            StoreUnavailableError,
        ),
    ],
)
def test_errors_of_lance_are_told_apart(text: str, kind: type[MemWalError]) -> None:
    found = translate_lance_error(OSError(text), "reading")
    assert type(found) is kind
    assert str(found).startswith("reading")
    assert ".rs" not in str(found)
    assert ("/a/b" in str(found)) is ("/a/b," in text)
