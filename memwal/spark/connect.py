"""Run the tasks of a job in a session of Spark Connect, whose server and workers stay warm.

A client of Connect has no SparkContext, so that tasks are rows of a data frame: ``mapInArrow`` runs
the function for each. Tasks and function travel inside the function that Spark is given, and not as
literals or properties, which Spark shows. Answers come back by Spark's own serializer, like those
of an RDD: they are read only by the client whose workers wrote them.

The id of a session is made of a name. Another process with the same name finds the workers of the
first one warm, for a minute after the last task. ``stop()`` of a session closes the connection
alone: a server refuses the id of a session that was released, or that it closed because it was
idle (by default after an hour), for as long as it remembers it. The next id of the name is taken
then.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

from memwal.errors import InvalidInputError, OutcomeUnknownError, SparkUnavailableError
from memwal.spark.session import without_harmless_warnings
from memwal.spark.version_compat import drop_exit_call
from memwal.util.optional_deps import requires_extra

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

CONNECT_PREFIX: Final = "sc://"
"""Start of the URL of a Spark Connect server."""

AUTH_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""Environment variable with the token of a server, which PySpark reads. A client that has one talks
TLS to every host but ``localhost``."""

_USER = "memwal"
_PORT = 15002
_CONNECT_SECONDS = 10.0

# A call to a server that is gone is tried for half a minute. PySpark's own policy tries for ten
# minutes; a server that starts anew does not know the session.
_MAX_RETRIES = 8
_MAX_BACKOFF_MS = 5_000

_INTERRUPT_SECONDS = 0.5

_SESSION_CLOSED = "INVALID_HANDLE.SESSION_CLOSED"
_SCHEMA = "id long, answer binary"


def connect_session(
    url: str, *, name: str, py_files: Sequence[Path] = (), token: str | None = None
) -> SparkSession:
    """Open the session of a name on a Spark Connect server, which is started if there is none.

    Parameters
    ----------
    url : str
        ``sc://host:port``, with further parameters as Spark takes them (``/;use_ssl=true``). A
        token is refused here: addresses are shown in lists of processes and in logs.
    name : str
        Of the session: processes that give the same one, and the same files, share its workers.
    py_files : sequence of Path, optional
        Wheels and zip files of Python modules, which the workers find before their own. Modules
        that are not pure Python cannot be loaded from them.
    token : str, optional
        Token of the server; default: that of the variable ``SPARK_CONNECT_AUTHENTICATE_TOKEN``.

    Raises
    ------
    InvalidInputError
        The URL is not one of Spark Connect, or has a token; or a file cannot be read.
    SparkUnavailableError
        The server does not answer.
    MissingExtraError
        There is no PySpark.
    """
    base, parameters = divide_url(url)
    with requires_extra("spark"):
        from pyspark.errors import PySparkException, PySparkValueError

    _check_answers(base)
    ids = _session_ids(name + _digest(py_files))
    while True:
        try:
            remote = f"{base}/;user_id={_USER}{parameters};session_id={next(ids)}"
            with _token_variable(token):
                return _open(remote, py_files)
        except PySparkValueError as error:
            raise InvalidInputError(f"the URL of the Spark Connect server: {error}") from error
        except PySparkException as error:
            if error.getCondition() == _SESSION_CLOSED:
                continue
            # The server's answer, without the lines around it.
            text = str(error).strip()
            found = re.search(r'details = "(.*)"', text)
            details = found[1] if found is not None else text.partition("\n")[0]
            raise SparkUnavailableError(
                f"the Spark Connect server {base} opens no session: {details}; look at its log, "
                "and at the token"
            ) from error


@contextmanager
def _token_variable(token: str | None) -> Iterator[None]:
    """Set the variable that PySpark reads a token from, while a session is opened.

    A token in an address would be in the messages of PySpark's errors.
    """
    if token is None:
        yield
        return
    before = os.environ.get(AUTH_VARIABLE)
    os.environ[AUTH_VARIABLE] = token
    try:
        yield
    finally:
        if before is None:
            del os.environ[AUTH_VARIABLE]
        else:
            os.environ[AUTH_VARIABLE] = before


def divide_url(url: str) -> tuple[str, str]:
    """Return ``sc://host:port`` of a server's URL, and its parameters; refuse a token in it."""
    base, *parameters = re.split("/?;", url)
    if not base.startswith(CONNECT_PREFIX):
        raise InvalidInputError(f"the URL of a Spark Connect server begins with {CONNECT_PREFIX}")
    if any(parameter.strip().startswith("token") for parameter in parameters):
        raise InvalidInputError(
            f"the URL of the Spark Connect server {base} has a token, which others would see; "
            f"give it in the environment variable {AUTH_VARIABLE}, or in the password of an "
            "Airflow connection"
        )
    return base.rstrip("/"), "".join(f";{parameter}" for parameter in parameters if parameter)


def _session_ids(name: str) -> Iterator[UUID]:
    """Yield the ids of a name: one for ever, and, once a server has closed it, those of today.

    Processes try them in this order, so that they meet in the first that is open. A day has few.
    """
    yield uuid5(NAMESPACE_URL, f"memwal:{name}")
    today = datetime.now(UTC).date()
    for number in count():
        yield uuid5(NAMESPACE_URL, f"memwal:{name}:{today}:{number}")


def _digest(py_files: Sequence[Path]) -> str:
    """Return the end of the name of a session: its files can never be replaced by others."""
    digest = sha256()
    for path in py_files:
        try:
            digest.update(path.read_bytes())
        except OSError as error:
            raise InvalidInputError(f"{path} cannot be read: {error.strerror}") from error
    return f" {digest.hexdigest()}" if py_files else ""


def _add_files(spark: SparkSession, py_files: Sequence[Path]) -> None:
    """Give the workers of a session files of Python modules, unless it has them."""
    if not py_files:
        return
    with TemporaryDirectory(prefix="memwal-") as folder:
        copies = []
        for path in py_files:
            # A wheel is a zip file, and Spark goes by the ending.
            copies.append(Path(folder, path.name).with_suffix(".zip"))
            shutil.copyfile(path, copies[-1])
        spark.addArtifacts(*map(str, copies), pyfile=True)


def _open(remote: str, py_files: Sequence[Path]) -> SparkSession:
    from pyspark.sql import SparkSession

    with without_harmless_warnings():
        from pyspark.sql.connect.client.retries import DefaultPolicy

        spark = SparkSession.builder.remote(remote).create()
    drop_exit_call(spark)
    spark.release_session_on_close = False
    spark.client.set_retry_policies(
        [DefaultPolicy(max_retries=_MAX_RETRIES, max_backoff=_MAX_BACKOFF_MS)]
    )
    try:
        # The first call starts or finds the session.
        spark.conf.get("spark.app.id", None)
        _add_files(spark, py_files)
    except BaseException:
        spark.stop()
        raise
    return spark


def _check_answers(base: str) -> None:
    """Raise SparkUnavailableError unless the server listens: PySpark would try for ten minutes."""
    address = urlsplit(base)
    try:
        host, port = address.hostname, address.port or _PORT
        socket.create_connection((host or "", port), timeout=_CONNECT_SECONDS).close()
    except ValueError:
        raise InvalidInputError(f"{base} has no port; write {CONNECT_PREFIX}host:port") from None
    except OSError as error:
        raise SparkUnavailableError(
            f"the Spark Connect server {base} does not answer ({error}); start it, or see to its "
            "address"
        ) from error


def run_connected(
    spark: SparkSession,
    tasks: Sequence[Any],
    attempt: Callable[[Any], Any],
    *,
    slices: int,
    description: str,
    reason: Callable[[Exception], str],
    check: Callable[[], None] | None = None,
) -> list[Any]:
    """Run tasks in a session of Connect, and return their answers in order.

    ``attempt`` runs one task in a worker and returns its answer; ``reason`` makes a line of an
    exception of PySpark. A call that is interrupted in the client interrupts its tasks, and so does
    an error of ``check``, which is called twice a second. ``description`` is the start of the tag
    of Spark's jobs, and the name of the step in the plan of the query: a client can give them no
    other name.
    """
    from pyspark.errors import PySparkException, PythonException
    from pyspark.serializers import CPickleSerializer

    def run_numbered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks whose numbers are in the batches of a partition."""
        import pyarrow as pa

        for batch in batches:
            for number in batch.column("id").to_pylist():
                answer = CPickleSerializer().dumps(attempt(tasks[number]))
                columns = [pa.array([number], pa.int64()), pa.array([answer], pa.binary())]
                yield pa.record_batch(columns, names=["id", "answer"])

    # Spark's name of a function.
    run_numbered.__name__ = description
    tag = f"{description.replace(',', ' ')} {uuid4().hex}"
    rows = spark.range(0, len(tasks), 1, slices).mapInArrow(run_numbered, _SCHEMA)

    def collect() -> list[Any]:
        # Tags are those of a thread.
        spark.addTag(tag)
        try:
            with without_harmless_warnings():
                collected: list[Any] = rows.collect()
                return collected
        finally:
            with suppress(PySparkException):
                spark.removeTag(tag)

    # A signal whose handler raises in the middle of gRPC can be lost: Python ignores an exception
    # in a callback. The wait for a thread is never inside one.
    with ThreadPoolExecutor(1, thread_name_prefix="memwal-connect") as pool:
        call = pool.submit(collect)
        try:
            # In turns: a signal that the system gives to another thread ends no wait of this one.
            while not call.done():
                wait([call], timeout=_INTERRUPT_SECONDS)
                if check is not None:
                    check()
            collected = call.result()
        except PythonException:
            # A fault in the function.
            raise
        except PySparkException as error:
            raise OutcomeUnknownError(
                f"Spark did not finish its tasks: {reason(error)}; look at its log and run the job "
                "again, what is done by then is not done twice"
            ) from error
        except BaseException:
            # Again until the call has ended: it may not have reached the server yet.
            while not call.done():
                try:
                    spark.interruptTag(tag)
                except PySparkException as error:
                    told = reason(error)
                    logger.warning("The tasks could not be interrupted, trying again: %s", told)
                wait([call], timeout=_INTERRUPT_SECONDS)
            raise
    serializer = CPickleSerializer()
    answers = {row.id: serializer.loads(row.answer) for row in collected}
    return [answers[number] for number in range(len(tasks))]
