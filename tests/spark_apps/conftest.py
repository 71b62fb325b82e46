"""Running the applications: by spark-submit as users do, or here with Spark standing still."""

import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from support.data.backlogs import make_backlog as make_backlog

from memwal.jobs.job import ParallelRunner, TaskRunner, run_in_process
from memwal.spark import application
from memwal.spark.session import ensure_java

APPS = Path(__file__).resolve().parents[2] / "spark_apps"
PATIENCE_SECONDS = 120


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Return a function that runs an application in this process, its tasks too.

    ``app("merge", "--table", ...)`` returns the exit code.
    """
    session = SimpleNamespace(
        sparkContext=SimpleNamespace(applicationId="local-1", uiWebUrl=None),
        conf={"spark.master": "local[3]"},
        stop=lambda: None,
    )

    def runner(spark: object, *, max_parallelism: int | None, **options: object) -> TaskRunner:
        return ParallelRunner(run_in_process, lambda: max_parallelism or 3)

    monkeypatch.setattr(application, "spark_session", lambda name: session)
    monkeypatch.setattr(application, "spark_runner", runner)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(name: str, *arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(APPS / f"{name}.py"), run_name="__main__")
        assert isinstance(end.value.code, int)
        return end.value.code

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Submitted:
    """A ``spark-submit`` that runs, in a process group of its own."""

    def __init__(self, name: str, *arguments: object, conf: Mapping[str, str]) -> None:
        environment = dict(os.environ)
        ensure_java(environment)
        # As in an activated environment.
        binaries = Path(sys.executable).parent
        environment["PATH"] = f"{binaries}{os.pathsep}{environment['PATH']}"
        environment.pop("PYSPARK_PYTHON", None)
        properties = [text for item in conf.items() for text in ("--conf", "=".join(item))]
        self._process = subprocess.Popen(
            [binaries / "spark-submit", "--master", "local[2]", *properties, APPS / f"{name}.py"]
            + [str(argument) for argument in arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def family(self) -> list[psutil.Process]:
        """The JVM, the driver and the workers."""
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    def driver(self) -> psutil.Process:
        """The Python process that runs the application."""
        (found,) = (
            process
            for process in self.family()[1:]
            # The shells that started the JVM are left as zombies, which have no command line.
            if process.status() != psutil.STATUS_ZOMBIE
            and any(argument.startswith(str(APPS)) for argument in process.cmdline())
        )
        return found

    def kill(self) -> None:
        """Kill the process group."""
        os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        out, err = self._process.communicate(timeout=PATIENCE_SECONDS)
        return self._process.returncode, out, err

    def result(self) -> dict[str, Any]:
        """The result on the last line, of an application that ends well."""
        code, out, err = self.wait()
        assert code == 0, f"{out}\n{err}"
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        return result

    def clean_up(self) -> None:
        """End what still runs."""
        if self.running:
            family = self.family()
            self.kill()
            psutil.wait_procs(family, timeout=PATIENCE_SECONDS)
        self._process.communicate(timeout=PATIENCE_SECONDS)


@pytest.fixture
def submit() -> Iterator[Callable[..., Submitted]]:
    """Return a function that starts an application: ``submit("merge", "--table", ...)``.

    ``conf`` are Spark properties.
    """
    started = []

    def start(name: str, *arguments: object, conf: dict[str, str] | None = None) -> Submitted:
        started.append(Submitted(name, *arguments, conf=conf or {}))
        return started[-1]

    yield start
    for submitted in started:
        submitted.clean_up()
