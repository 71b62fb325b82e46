"""Errors for optional dependencies that are not installed, with the command that installs them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from memwal.errors import MissingExtraError
from memwal.version import DISTRIBUTION


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
            f"{package} is not installed, which this needs; {how_to_install(extra)}"
        ) from error


def how_to_install(extra: str) -> str:
    """Return the end of a message: install this extra, and the command that does it.

    The command names the packages of the extra that are missing, instead of
    ``lance-memwal[extra]``, because it then works for every kind of installation: an index may not
    have lance-memwal, the wheel's file may be gone, and ``pip install FOLDER[extra]`` would replace
    an editable installation. It contains no path and no address, so no secret either. There is no
    command if memwal is on the path without being installed. An example:
    ``install the extra cli of lance-memwal: pip install 'rich>=14' 'typer>=0.29'``.
    """
    from importlib.metadata import Distribution, PackageNotFoundError, distribution

    advice = f"install the extra {extra} of {DISTRIBUTION}"
    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return advice
    marker = re.compile(rf"extra == (['\"]){re.escape(extra)}\1")
    packages = [
        requirement.partition(";")[0].strip()
        for requirement in installed.requires or ()
        if marker.search(requirement)
    ]
    if not packages:
        return advice
    missing = [
        package
        for package in packages
        # A package that has extras itself may be there without them.
        if "[" in package or not any(Distribution.discover(name=re.split(r"[^\w.-]", package)[0]))
    ]
    # An environment that uv made has no pip.
    by_uv = (installed.read_text("INSTALLER") or "").strip() == "uv"
    return f"{advice}: {'uv ' if by_uv else ''}pip install {shlex.join(missing or packages)}"
