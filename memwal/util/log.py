"""Text of errors that is safe to log, and warnings that are logged once per process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from memwal.errors import MemWalError

_MAX_LENGTH = 400
_MAX_LOGGED = 10_000
_logged: set[tuple[str, str]] = set()
_lock = threading.Lock()


def safe_error_text(error: BaseException, *, secrets: Iterable[str] = ()) -> str:
    """Return the type and the first line of an error, without secrets and without data.

    Only messages of this library and of the operating system are included: those of Arrow and
    Lance may quote a row's value. ``secrets`` are blanked out, in their order: longest first, as
    :func:`memwal.util.redaction.secret_values` returns them.
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
    return f"{kind}: {text.partition(chr(10))[0][:_MAX_LENGTH]}"


def warn_once(logger: logging.Logger, message: str, *args: str) -> None:
    """Log a warning, with ``%s`` for each argument, unless this process has logged the same one."""
    key = message, "\0".join(args)
    with _lock:
        if key in _logged:
            return
        if len(_logged) >= _MAX_LOGGED:
            _logged.clear()
        _logged.add(key)
    logger.warning(message, *args)
