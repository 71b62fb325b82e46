"""Errors for optional dependencies that are not installed: ``pip install memwal[extra]``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memwal.errors import MissingExtraError


@contextmanager
def requires_extra(extra: str) -> Iterator[None]:
    """Turn a failed import of another package in the block into a MissingExtraError.

    It names the extra of ``pyproject.toml`` to install, e.g. ``"catalog"``.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "memwal"):
            raise
        raise MissingExtraError(
            f"{package} is not installed, which this needs; pip install 'memwal[{extra}]'"
        ) from error
