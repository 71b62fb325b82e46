"""Spark applications in client mode, which survive their task so that its retry can reattach.

An application runs in a session of its own and writes its log to a file, so that neither signals
nor a closed pipe reach it when its task ends. Its folder holds the log, the result and, while it
runs, the storage options of an Airflow connection.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol, Self

from memwal import errors
from memwal.errors import InvalidInputError, MemWalError
from memwal.util.records import JsonObject
from memwal_airflow.provider.settings import STATE_FOLDER
from memwal_airflow.spark.processes import EXIT_SECONDS, ProcessId, end_session
from memwal_airflow.version_compat import AirflowException

LOG_FILE = "driver.log"
RESULT_FILE = "result.json"
LEASE_CHECK_SECONDS = 5.0
"""Seconds between two lease checks of a task that waits for its application."""

KEEP_SECONDS = 86_400.0
"""How long the folder of an application is kept when no retry of its task came for it."""

_POLL_SECONDS = 0.2
MAX_READ_CHARACTERS = 1 << 20
_PROCESS_FILE = "process.json"

logger = logging.getLogger(__name__)


class RunningJob(Protocol):
    """A Spark application, wherever its driver runs."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def reattach_state(self) -> dict[str, str]:
        """State that a retry needs to find the application."""

    @property
    def outcome(self) -> str:
        """How the application ended, for messages."""

    @property
    def failed(self) -> bool:
        """True if the application is known to have failed."""

    def exists(self) -> bool:
        """Return whether the application runs or has left its result."""

    def lines(self, check_lease: Callable[[], None]) -> Iterator[str]:
        """Yield the lines of the log from the first on, until the application ends.

        ``check_lease`` is called every few seconds. An error that it raises ends the wait, not the
        application.
        """

    def result(self) -> JsonObject | None:
        """Return the result that the application wrote; None without one."""

    def end(self) -> None:
        """End the application and its processes; safe to call when it has ended."""

    def clean_up(self) -> None:
        """Remove the files of an ended application, once its result is taken."""


def state_folder() -> Path:
    """Return ``[memwal] state_folder`` of ``airflow.cfg``, else ``memwal/jobs`` in Airflow's home.

    Creates the folder if it is missing, readable by this user only.
    """
    home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
    folder = Path(STATE_FOLDER.read() or home / "memwal" / "jobs")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"The folder {folder} cannot be made: {error.strerror}; set [memwal] state_folder in "
            "airflow.cfg to one that Airflow's workers can write."
        ) from error
    return folder


@contextlib.contextmanager
def new_job_folder(job: str) -> Iterator[Path]:
    """Create the folder of a new application and remove abandoned ones.

    Removed again if the block, which starts the application, raises.
    """
    parent = state_folder()
    _remove_abandoned_folders(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"{job}-", dir=parent))
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@dataclass(kw_only=True)
class SparkJob(RunningJob):
    """A Spark application that this task started, or that its retry found."""

    process: ProcessId  # The spark-submit, which becomes the JVM.
    folder: Path
    host: str = field(default_factory=socket.gethostname)
    child: subprocess.Popen[bytes] | None = None  # The process, if this process started it.

    @classmethod
    def start(cls, command: list[str], *, env: Mapping[str, str], folder: Path) -> Self:
        """Start a command in a session of its own, with its output in a file of the folder."""
        with open(folder / LOG_FILE, "wb") as output:
            child = subprocess.Popen(  # noqa: S603
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        job = cls(process=ProcessId.of(child.pid), folder=folder, child=child)
        try:
            state = {"host": job.host, "process": asdict(job.process)}
            (folder / _PROCESS_FILE).write_text(json.dumps(state))
        except BaseException:
            job.end()
            job.clean_up()
            raise
        return job

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Return the application of a folder; None if the folder names none."""
        try:
            state = json.loads((folder / _PROCESS_FILE).read_text())
            process = ProcessId.from_dict(state["process"])
            return cls(process=process, folder=folder, host=str(state["host"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def name(self) -> str:
        return f"process {self.process.pid}"

    @property
    def reattach_state(self) -> dict[str, str]:
        return {"folder": self.folder.name}

    @property
    def outcome(self) -> str:
        code = self.exit_code
        if code is None:
            return "of an earlier try ended without a result"
        if code == 0:
            return "succeeded without a result; look at its log above"
        return f"ended with exit code {code}"

    @property
    def failed(self) -> bool:
        return bool(self.exit_code)

    def exists(self) -> bool:
        return self.folder.is_dir()

    @property
    def running(self) -> bool:
        """True while the application has not ended."""
        if self.child is not None:
            return self.child.poll() is None
        return self.process.running

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while the application runs, or if another process started it."""
        return None if self.child is None else self.child.poll()

    def result(self) -> JsonObject | None:
        try:
            text = (self.folder / RESULT_FILE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        result: JsonObject = json.loads(text)
        return result

    def lines(self, check_lease: Callable[[], None]) -> Iterator[str]:
        checked_at = time.monotonic()
        partial_line = ""
        with open(self.folder / LOG_FILE, encoding="utf-8", errors="replace") as output:
            while True:
                # Checked before reading, so that the last lines are read, too.
                ended = not self.running
                read = output.read(MAX_READ_CHARACTERS)
                *whole_lines, partial_line = (partial_line + read).split("\n")
                yield from whole_lines
                if len(partial_line) >= MAX_READ_CHARACTERS:
                    yield partial_line
                    partial_line = ""
                if time.monotonic() - checked_at >= LEASE_CHECK_SECONDS:
                    check_lease()
                    checked_at = time.monotonic()
                if read:
                    continue
                if ended:
                    break
                time.sleep(_POLL_SECONDS)
        if partial_line:
            yield partial_line

    def end(self) -> None:
        end_session(self.process)

    def clean_up(self) -> None:
        if self.child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(EXIT_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)


def _remove_abandoned_folders(parent: Path) -> None:
    for folder in parent.iterdir():
        try:
            if time.time() - folder.stat().st_mtime < KEEP_SECONDS:
                continue
        except FileNotFoundError:
            # Another task was faster.
            continue
        job = SparkJob.of(folder)
        if job is not None and (job.host != socket.gethostname() or job.running):
            continue
        logger.info("Removing %s, abandoned by its task.", folder)
        shutil.rmtree(folder, ignore_errors=True)


_ERROR_LINE = re.compile(r"error: (?:(?P<type>\w+): )?(?P<text>.+)")


class SparkApplicationError(AirflowException):
    """A Spark application ended without a result, and not with an error of memwal."""


def error_of_line(line: str) -> Exception | None:
    """Return the error that an application reports in a line of its log, if it does.

    It has the type that it has in the application, so that wrong input is not tried again here
    either.
    """
    match = _ERROR_LINE.match(line.strip())
    if match is None:
        return None
    kind = getattr(errors, match["type"] or "", None)
    if isinstance(kind, type) and issubclass(kind, MemWalError):
        return kind(match["text"])
    return SparkApplicationError(match[0].removeprefix("error: "))
