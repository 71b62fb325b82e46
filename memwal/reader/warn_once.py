"""Warnings that tell of a lasting state: once for each thing, not with every read of it."""

from __future__ import annotations

import logging
import threading

_MAX_KNOWN = 10_000
_known: set[tuple[str, str]] = set()
_lock = threading.Lock()


def warn_once(logger: logging.Logger, message: str, *args: str) -> None:
    """Log a warning unless this process has logged the same one.

    Parameters
    ----------
    message : str
        With ``%s`` for each of the arguments.
    """
    key = message, "\0".join(args)
    with _lock:
        if key in _known:
            return
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known.add(key)
    logger.warning(message, *args)
