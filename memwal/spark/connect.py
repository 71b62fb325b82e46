"""Run the tasks of a job in a session of Spark Connect, whose server and workers stay warm.

A client of Connect has no SparkContext, so that tasks are rows of a data frame: ``mapInArrow`` runs
the function for each. Tasks and function travel inside the function that Spark is given, and not as
literals or properties, which Spark shows. Answers come back by Spark's own serializer, like those
of an RDD: they are read by nobody but the client whose workers wrote them.

The id of a session is made of a name. Another process with the same name finds the workers of the
first one warm, for a minute after the last task. ``stop()`` of a session closes the connection
alone, since the id of a session that was released can never be used again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, uuid4, uuid5

from memwal.errors import InvalidInputError, OutcomeUnknownError, StoreUnavailableError
from memwal.spark.session import without_harmless_warnings
from memwal.util.optional_deps import requires_extra

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

CONNECT_PREFIX: Final = "sc://"
"""Start of the URL of a Spark Connect server."""

_USER = "memwal"
_PORT = 15002
_CONNECT_SECONDS = 10.0

# A call to a server that is gone is tried for half a minute. PySpark's own policy tries for ten
# minutes, and again when the process ends; a server that starts anew does not know the session.
_MAX_RETRIES = 8
_MAX_BACKOFF_MS = 5_000

_SCHEMA = "id long, answer binary"


def connect_session(url: str, *, name: str) -> SparkSession:
    """Open the session of a name on a Spark Connect server, which is started if there is none.

    Parameters
    ----------
    url : str
        ``sc://host:port``, with further parameters as Spark takes them (``;use_ssl=true``). A
        token belongs into the variable ``SPARK_CONNECT_AUTHENTICATE_TOKEN``.
    name : str
        Of the session: processes that give the same one share its warm workers.

    Raises
    ------
    InvalidInputError
        The URL is not one of Spark Connect.
    StoreUnavailableError
        The server does not answer.
    MissingExtraError
        There is no PySpark.
    """
    if not url.startswith(CONNECT_PREFIX):
        raise InvalidInputError(f"the URL of a Spark Connect server begins with {CONNECT_PREFIX}")
    with requires_extra("spark"):
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

    session_id = uuid5(NAMESPACE_URL, f"memwal:{name}")
    base, _, parameters = url.partition("/;")
    more = f";{parameters}" if parameters else ""
    remote = f"{base}/;user_id={_USER};session_id={session_id}{more}"
    _check_answers(base)
    try:
        with without_harmless_warnings():
            from pyspark.sql.connect.client.retries import DefaultPolicy

            spark = SparkSession.builder.remote(remote).create()
    except PySparkException as error:
        raise StoreUnavailableError(
            f"the Spark Connect server {base} does not answer; start it, or see to its address"
        ) from error
    spark.release_session_on_close = False
    spark.client.set_retry_policies(
        [DefaultPolicy(max_retries=_MAX_RETRIES, max_backoff=_MAX_BACKOFF_MS)]
    )
    return spark


def _check_answers(base: str) -> None:
    """Raise StoreUnavailableError if nobody listens: PySpark would try for ten minutes."""
    address = urlsplit(base)
    try:
        host, port = address.hostname, address.port or _PORT
        socket.create_connection((host or "", port), timeout=_CONNECT_SECONDS).close()
    except ValueError:
        raise InvalidInputError(f"{base} has no port; write {CONNECT_PREFIX}host:port") from None
    except OSError as error:
        raise StoreUnavailableError(
            f"the Spark Connect server {base} does not answer ({error}); start it, or see to its "
            "address"
        ) from error


def run_connected(
    spark: SparkSession,
    tasks: Sequence[Any],
    attempt: Callable[[Any], Any],
    *,
    slices: int,
    reason: Callable[[Exception], str],
) -> list[Any]:
    """Run tasks in a session of Connect, and return their answers in order.

    ``attempt`` runs one task in a worker and returns its answer; ``reason`` makes a line of an
    exception of PySpark. A call that is interrupted in the client interrupts its tasks.
    """
    from pyspark.errors import PySparkException, PythonException
    from pyspark.serializers import CPickleSerializer

    tag = f"memwal-{uuid4().hex}"
    rows = spark.range(0, len(tasks), 1, slices).mapInArrow(_Attempts(tasks, attempt), _SCHEMA)
    spark.addTag(tag)
    try:
        with without_harmless_warnings():
            collected = rows.collect()
        serializer = CPickleSerializer()
        answers = {row.id: serializer.loads(row.answer) for row in collected}
    except PythonException:
        # A fault in the function.
        raise
    except PySparkException as error:
        raise OutcomeUnknownError(
            f"Spark did not finish its tasks: {reason(error)}; look at its log and run the job "
            "again, what is done by then is not done twice"
        ) from error
    except BaseException:
        with suppress(PySparkException):
            spark.interruptTag(tag)
        raise
    finally:
        with suppress(PySparkException):
            spark.removeTag(tag)
    return [answers[number] for number in range(len(tasks))]


class _Attempts:
    """Runs the tasks whose numbers are in the batches of a partition."""

    def __init__(self, tasks: Sequence[Any], attempt: Callable[[Any], Any]) -> None:
        self._tasks = tasks
        self._attempt = attempt

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark.serializers import CPickleSerializer

        serializer = CPickleSerializer()
        for batch in batches:
            for number in batch.column("id").to_pylist():
                answer = serializer.dumps(self._attempt(self._tasks[number]))
                yield pa.record_batch(
                    {
                        "id": pa.array([number], pa.int64()),
                        "answer": pa.array([answer], pa.binary()),
                    }
                )
