"""Errors as logs and stats may show them."""

from __future__ import annotations

from collections.abc import Iterable

from memwal.errors import MemWalError

_LONGEST = 400


def shown_error(error: BaseException, *, secrets: Iterable[str] = ()) -> str:
    """Kind and first line of an error, fit for logs: without secrets, without data.

    Only messages of this library and of the operating system are repeated. Those of Arrow and
    Lance may quote a row's value.

    Parameters
    ----------
    secrets : iterable of str
        Values to blank out, longest first: :func:`memwal.storage.redaction.secret_values`.
    """
    kind = type(error).__name__
    if isinstance(error, MemWalError):
        text = str(error)
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror
    else:
        return kind
    for secret in secrets:
        text = text.replace(secret, "***")
    return f"{kind}: {text.partition(chr(10))[0][:_LONGEST]}"
