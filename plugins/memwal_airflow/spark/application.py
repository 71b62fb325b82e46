"""Spark applications of tasks, which live on when their task is killed and are found again.

An application runs in a session of its own and writes its log to a file, so that neither signals
nor a closed pipe reach it when its task ends. A folder of its own holds the log, the result and,
while it runs, the storage options of an Airflow connection.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from airflow.sdk.configuration import conf

from memwal.errors import InvalidInputError
from memwal_airflow.spark.processes import END_SECONDS, ProcessId, end_session
from memwal_airflow.spark.settings import SECTION

LOG_FILE = "driver.log"
RESULT_FILE = "result.json"
LOOK_SECONDS = 5.0
"""How often a task that waits makes sure that it still has its lease."""

KEEP_SECONDS = 86_400.0
"""How long the folder of an application whose task never came back is kept."""

_POLL_SECONDS = 0.2
READ_AT_ONCE = 1 << 20
_PROCESS_FILE = "process.json"

log = logging.getLogger(__name__)


class RunningJob(Protocol):
    """An application, wherever its driver runs."""

    @property
    def name(self) -> str:
        """What it is called in messages."""

    @property
    def known(self) -> dict[str, str]:
        """What a retry finds it by."""

    @property
    def outcome(self) -> str:
        """How it ended, for messages."""

    @property
    def failed(self) -> bool:
        """Whether it is known to have ended otherwise than well."""

    def is_there(self) -> bool:
        """Whether it runs, or has left its result."""

    def lines(self, look: Callable[[], None]) -> Iterator[str]:
        """The lines of its log from the first on, until it ends."""

    def result(self) -> dict[str, Any] | None:
        """The result that it wrote, if it did."""

    def end(self) -> None:
        """End it, and all that belongs to it; safe to call when it has ended."""

    def clean_up(self) -> None:
        """Remove what it leaves, when it has ended and its result is taken."""


def state_folder() -> Path:
    """``[memwal] state_folder`` of ``airflow.cfg``, by default ``memwal/jobs`` in Airflow's home.

    It is made when it is not there, for this user alone.

    Raises
    ------
    InvalidInputError
        It cannot be made.
    """
    home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser()
    folder = Path(conf.get(SECTION, "state_folder", fallback=str(home / "memwal" / "jobs")))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"The folder {folder} cannot be made: {error.strerror}; set [memwal] state_folder in "
            "airflow.cfg to one that Airflow's workers can write."
        ) from error
    return folder


def new_folder(job: str) -> Path:
    """Make the folder of a new application, and remove those that nobody came back for."""
    parent = state_folder()
    _sweep(parent)
    return Path(tempfile.mkdtemp(prefix=f"{job}-", dir=parent))


@dataclass(kw_only=True)
class SparkJob:
    """A Spark application of a task: started by it, or found by its retry.

    Attributes
    ----------
    process : ProcessId
        The ``spark-submit``, which becomes the JVM.
    folder : Path
        Where its files are.
    host : str
        Where it runs.
    child : subprocess.Popen or None
        The same process, where this one started it.
    """

    process: ProcessId
    folder: Path
    host: str = field(default_factory=socket.gethostname)
    child: subprocess.Popen[bytes] | None = None

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
            known = {"host": job.host, "process": job.process.to_dict()}
            (folder / _PROCESS_FILE).write_text(json.dumps(known))
        except BaseException:
            job.end()
            job.clean_up()
            raise
        return job

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """The application whose folder this is; None where it does not tell of one."""
        try:
            known = json.loads((folder / _PROCESS_FILE).read_text())
            process = ProcessId.from_dict(known["process"])
            return cls(process=process, folder=folder, host=str(known["host"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"process {self.process.pid}"

    @property
    def known(self) -> dict[str, str]:
        """What a retry finds it by."""
        return {"folder": self.folder.name}

    @property
    def outcome(self) -> str:
        """How it ended, for messages."""
        code = self.exit_code
        if code is None:
            return "of an earlier try ended and left no result"
        if code == 0:
            return "ended well and left no result; look at its log above"
        return f"ended with exit code {code}"

    @property
    def failed(self) -> bool:
        """Whether it is known to have ended otherwise than well."""
        return bool(self.exit_code)

    def is_there(self) -> bool:
        """Whether it runs, or has left its result."""
        return self.folder.is_dir()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        if self.child is not None:
            return self.child.poll() is None
        return self.process.running

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs, and where another process started it."""
        return None if self.child is None else self.child.poll()

    def result(self) -> dict[str, Any] | None:
        """The result that it wrote, if it did."""
        try:
            text = (self.folder / RESULT_FILE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        found: dict[str, Any] = json.loads(text)
        return found

    def lines(self, look: Callable[[], None]) -> Iterator[str]:
        """The lines of its log from the first on, until it ends.

        Parameters
        ----------
        look : callable
            Called every few seconds; what it raises ends the wait, and not the application.
        """
        looked_at = time.monotonic()
        begun = ""
        with open(self.folder / LOG_FILE, encoding="utf-8", errors="replace") as output:
            while True:
                # Asked before reading, so that what it wrote last is read.
                over = not self.running
                read = output.read(READ_AT_ONCE)
                *whole, begun = (begun + read).split("\n")
                yield from whole
                if len(begun) >= READ_AT_ONCE:
                    yield begun
                    begun = ""
                if time.monotonic() - looked_at >= LOOK_SECONDS:
                    look()
                    looked_at = time.monotonic()
                if read:
                    continue
                if over:
                    break
                time.sleep(_POLL_SECONDS)
        if begun:
            yield begun

    def end(self) -> None:
        """End it: the JVM, its Python driver and its workers. Safe to call when it has ended."""
        end_session(self.process)

    def clean_up(self) -> None:
        """Remove its files, when it has ended."""
        if self.child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(END_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)


def _sweep(parent: Path) -> None:
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
        log.info("Removing %s, which no task came back for.", folder)
        shutil.rmtree(folder, ignore_errors=True)
