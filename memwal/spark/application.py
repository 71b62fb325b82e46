"""Shared parts of the Spark applications that run maintenance jobs.

Each application is started by ``spark-submit``, or by ``python`` for a local session, with the
interpreter that memwal is installed in. It prints the result of its job as one line of JSON.

Exit codes are those of the command line, see :mod:`memwal.boundary.exit_codes`: 0 when the job ran,
and ``warnings`` in the result lists the work that it could not do; 1 also when a check found
errors. After SIGINT and SIGTERM they are 130 and 143, and the Spark tasks ended with the
application. In all other cases a line on stderr that starts with ``error:`` gives the reason and
the next step, behind the type of an error of memwal. To run an application again is always safe.

``spark-submit`` passes on the output of the driver, of either stream, as its own stdout; the result
is the last line. A caller that must not miss the result takes it from ``--result``, which is
written whole or not at all: a file, or an object where the driver runs on another machine.

``python -m memwal.spark.application`` prints the folder of the applications, in the installed
package or in the checkout, for a shell that calls ``spark-submit`` itself::

    spark-submit $(python -m memwal.spark.application)/merge.py --table ...
"""

from __future__ import annotations

import json
import signal
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from memwal.boundary.exit_codes import EXIT_CODES_HELP, ExitCode, exit_code
from memwal.errors import MemWalError
from memwal.jobs.arguments import add_arguments, parse_options
from memwal.jobs.options import JobOptions
from memwal.spark.connect import AUTH_VARIABLE, connect_session
from memwal.spark.options.values import parse_positive
from memwal.spark.parallelism import await_executors
from memwal.spark.result_store import check_target, write_result
from memwal.spark.runner import application_span, spark_reason, spark_runner, with_trace_context
from memwal.spark.session import APPLICATION_LINE, is_submitted, spark_session
from memwal.storage.credentials import read_options_file
from memwal.storage.location import TableLocation, allow_external
from memwal.table import Table
from memwal.table import open as open_table

Options = TypeVar("Options", bound=JobOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Application(Generic[Options]):
    """Table, options and command line of a job."""

    table: Table
    # Their tasks run on Spark: as many as run at once there when they are planned, unless
    # ``--max-tasks`` says otherwise.
    options: Options
    arguments: Namespace  # The command line.


class JobReport(Protocol):
    """Result of a job."""

    def to_dict(self) -> dict[str, object]:
        """Return the result in the types of JSON."""


def job_parser(job: str, description: str) -> ArgumentParser:
    """Return a parser with the options that every application has."""
    parser = ArgumentParser(
        prog=f"{job}.py",
        description=description,
        epilog=f"exit codes:\n{EXIT_CODES_HELP}  130, 143: ended by a signal",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.set_defaults(job=job)
    parser.add_argument("--table", required=True, metavar="URI", help="address of the table")
    parser.add_argument(
        "--storage-options-file",
        type=Path,
        metavar="FILE",
        help="JSON object of storage options, as Lance takes them; read by the driver",
    )
    parser.add_argument(
        "--allow-external",
        action="append",
        default=[],
        metavar="URI",
        help="folder outside of the table below which files of it may be; repeatable",
    )
    parser.add_argument(
        "--result",
        metavar="FILE_OR_URI",
        help="also write the result to this file, or to this object (s3://bucket/name.json, "
        "file:///folder/name.json), which must not exist yet",
    )
    parser.add_argument(
        "--result-options-file",
        type=Path,
        metavar="FILE",
        help="JSON object of storage options that reach the object of --result (default: what "
        "the environment of the driver gives)",
    )
    parser.add_argument(
        "--remote",
        metavar="URL",
        help="Spark Connect server, sc://host:port, in whose session of this table the tasks run; "
        "started by python, and not by spark-submit. A token is read from "
        f"{AUTH_VARIABLE}",
    )
    parser.add_argument(
        "--session",
        metavar="NAME",
        help="name of the session of --remote: tables that give the same one share its Python "
        "workers (default: the address of the table)",
    )
    parser.add_argument(
        "--py-files",
        type=lambda text: tuple(Path(name) for name in text.split(",") if name),
        default=(),
        metavar="FILES",
        help="wheels and zip files of pure Python modules that the workers of --remote get, "
        "divided by commas",
    )
    parser.add_argument(
        "--parallelism",
        type=parse_positive,
        metavar="N",
        help="tasks that run at once at most (default: as many as Spark has cores for when they "
        "are planned)",
    )
    return parser


def run_application(
    parser: ArgumentParser,
    options: type[Options],
    job: Callable[[Application[Options]], JobReport],
    *,
    failure_of: Callable[[Any], str | None] = lambda result: None,
    in_any_state: bool = False,
) -> int:
    """Run a job with the command line of this process, and return the exit code.

    Each field of ``options`` becomes an option of the command line. ``failure_of`` returns why the
    exit code is 1, or None; the result is written in both cases. A job that takes ``in_any_state``
    also gets a table that does not open, or has no MemWAL.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    add_arguments(parser, options)
    arguments = parser.parse_args()
    file = arguments.result_options_file
    try:
        parsed = parse_options(options, arguments)
        result_options = read_options_file(file) if file is not None else None
        if arguments.result is not None:
            check_target(arguments.result, result_options)
        result = _run_job(arguments, parsed, job, in_any_state=in_any_state)
    except MemWalError as error:
        return _fail(f"{type(error).__name__}: {error}", exit_code(error))
    except _ShutdownRequested as end:
        return _fail(f"shutdown requested ({end}); running the job again is safe", 128 + end.signal)
    except (Py4JError, PySparkException) as error:
        return _fail(f"Spark failed: {spark_reason(error)}; look at its log above", ExitCode.FAILED)
    text = json.dumps(result.to_dict()) + "\n"
    sys.stdout.write(text)
    sys.stdout.flush()
    if arguments.result is not None:
        try:
            write_result(arguments.result, text, result_options)
        except MemWalError as error:
            return _fail(
                f"the job is done, but its result cannot be written to {arguments.result}: {error}",
                ExitCode.FAILED,
            )
    failure = failure_of(result)
    return ExitCode.DONE if failure is None else _fail(failure, ExitCode.FAILED)


def run_table_job(
    job: str,
    description: str,
    options: type[Options],
    run: Callable[[TableLocation, Options], JobReport],
    *,
    failure_of: Callable[[Any], str | None] = lambda result: None,
) -> int:
    """Run a job that needs only the table and its options; see :func:`run_application`."""
    return run_application(
        job_parser(job, description),
        options,
        lambda application: run(application.table.location, application.options),
        failure_of=failure_of,
    )


def _run_job(
    arguments: Namespace,
    options: Options,
    job: Callable[[Application[Options]], JobReport],
    *,
    in_any_state: bool,
) -> JobReport:
    file = arguments.storage_options_file
    # Read before the session starts, so that invalid options fail without waiting for Spark.
    storage_options = allow_external(
        read_options_file(file) if file is not None else {}, arguments.allow_external
    )
    if in_any_state:
        table = Table(TableLocation(arguments.table, storage_options))
    else:
        table = open_table(arguments.table, storage_options=storage_options)
    remote = arguments.remote
    if remote is not None:
        name = arguments.session or table.uri
        spark = connect_session(remote, name=name, py_files=arguments.py_files)
    else:
        spark = spark_session(f"memwal {arguments.job} {table.uri}")
        if is_submitted():
            # For the starting process.
            context = spark.sparkContext
            address = f": {context.uiWebUrl}" if context.uiWebUrl else ""
            sys.stderr.write(f"{APPLICATION_LINE}{context.applicationId}{address}\n")
            sys.stderr.flush()
    # Install our handlers after the session: starting it installs Spark's own.
    _received_signals.clear()
    _install_signal_handlers(_shut_down)
    try:
        if arguments.parallelism is None:
            await_executors(spark)
        runner = spark_runner(
            spark,
            max_parallelism=arguments.parallelism,
            description=f"memwal {arguments.job} {table.uri}",
        )
        with application_span(arguments.job, table.location):
            if hasattr(options, "run"):
                options = replace(options, run=with_trace_context(runner))  # type: ignore[type-var]
            return job(Application(table=table, options=options, arguments=arguments))
    except Exception as error:
        if _received_signals:
            # The signal came while Py4J could only answer it with an error of its own.
            raise _ShutdownRequested(_received_signals[0]) from error
        raise
    finally:
        spark.stop()


_received_signals: list[int] = []


class _ShutdownRequested(KeyboardInterrupt):
    """A signal to shut down.

    A KeyboardInterrupt, because Py4J abandons a pending call only for that; after any other
    exception it would read the old call's answer as the next one's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


def _shut_down(number: int, frame: FrameType | None) -> NoReturn:
    # Ignore further signals: the clean-up that this starts must not be interrupted.
    _install_signal_handlers(signal.SIG_IGN)
    _received_signals.append(number)
    raise _ShutdownRequested(number)


def _install_signal_handlers(
    handler: Callable[[int, FrameType | None], NoReturn] | signal.Handlers,
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _fail(reason: object, code: int) -> int:
    sys.stderr.write(f"error: {' '.join(str(reason).split())}\n")
    return code


_PACKAGE = Path(__file__).resolve().parents[1]


def apps_folder() -> Path:
    """Folder of ``merge.py`` and the like: in the package of a wheel, beside it in a checkout."""
    installed = _PACKAGE / "spark_apps"
    return installed if installed.is_dir() else _PACKAGE.parent / "spark_apps"


if __name__ == "__main__":
    print(apps_folder())
