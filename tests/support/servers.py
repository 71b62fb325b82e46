"""Servers of tests: in a thread of the test, or a program in a process of its own."""

import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import HTTPServer
from pathlib import Path
from typing import TypeVar

Server = TypeVar("Server", bound=HTTPServer)

_START_SECONDS = 240.0
# The program ends with the test run, also when that is killed: 1 is PR_SET_PDEATHSIG.
_WITH_PARENT = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM);"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Let a server answer in a thread while the block runs."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def running_program(
    *command: str, folder: Path, env: Mapping[str, str] | None = None, address: str | None = None
) -> Iterator[None]:
    """Run a program beside the block, in a folder that also gets what it prints.

    Parameters
    ----------
    address : str, optional
        The block begins when something answers there by HTTP.

    Raises
    ------
    RuntimeError
        The program ended before, or nothing answered for four minutes.
    """
    log_path = folder / f"{Path(command[0]).name}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _WITH_PARENT, *command],
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while address is not None and not _answers(address):
            if process.poll() is not None or time.monotonic() > deadline:
                said = log_path.read_text(errors="replace")
                raise RuntimeError(f"{command[0]} did not start:\n{said}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
