"""Programs of Python that tests run in a process of their own."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

# A process that never ends is a bug, and must not hang the run.
_SECONDS = 240.0


def python_command(program: str | Path, *arguments: object) -> list[str]:
    """Return the command line of a program: its text, or its file."""
    given = [str(program)] if isinstance(program, Path) else ["-c", textwrap.dedent(program)]
    return [sys.executable, *given, *map(str, arguments)]


def python_environment(
    added: Mapping[str, str] | None = None, *, without: str | tuple[str, ...] = ()
) -> dict[str, str]:
    """Return the environment of this process, and its import path, with more variables.

    Those whose names start with ``without`` are left out before.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(added or {})}


def run_python(
    program: str | Path,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    status: int = 0,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    Parameters
    ----------
    env : mapping, optional
        The whole environment; that of :func:`python_environment` by default.
    status : int, default 0
        The exit code that is expected; the test fails with what the program wrote to its standard
        error if it is another one.
    """
    done = subprocess.run(
        python_command(program, *arguments),
        env=python_environment() if env is None else env,
        cwd=cwd,
        timeout=_SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done


@contextmanager
def running_python(
    program: str | Path, *arguments: object, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a program beside the block, after which it is killed if it has not ended.

    Its standard input and output are pipes of the test.
    """
    with subprocess.Popen(
        python_command(program, *arguments),
        env=python_environment() if env is None else env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
