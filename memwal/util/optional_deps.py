"""Errors for optional dependencies that are missing: ``pip install memwal[extra]``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memwal.errors import MissingExtraError


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Say of imports within that they need an extra of the package.

    Parameters
    ----------
    extra : str
        As ``pyproject.toml`` names it, such as ``"catalog"``.

    Raises
    ------
    MissingExtraError
        A module is not there, and it is none of memwal's own.
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
