"""Running the blocks of a page one after another, in one folder, one Python and one shell.

``memwal`` in the shell is answered by this process, unless real processes are asked for: loading
Lance and SQLAlchemy anew for each of hundreds of commands would cost minutes.
"""

import array
import contextlib
import io
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.docs.given import GIVEN
from support.docs.pages import ROOT, Block, Page

_FORWARD = """\
#!{python} -IS
import array, json, os, socket, sys

with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(request)
    answer = server.recv(1)
sys.exit(answer[0] if answer else 70)
"""

_KEPT = ("PATH", "LANG", "LC_ALL", "JAVA_HOME", "TZ")
"""Of the environment of the tests, what a page sees."""

_OF_INSTALLERS = ("PIP_", "UV_", "SSL_CERT_", "HTTP_", "HTTPS_", "NO_PROXY", "XDG_CACHE_")
"""And the beginnings of what pip and uv are told, where a page may use them."""

_END = "\x1e"


class PageRun:
    """A folder in which the blocks of a page run.

    Parameters
    ----------
    folder : Path
        Made here; it is the home of whoever reads the page as well.
    processes : bool
        Whether ``memwal`` is a process of its own each time.
    python : Path, optional
        The Python of the reader, which need not have memwal: nothing of the environment of the
        tests is there, pip and uv may be used, and each block of Python is a process.
    """

    def __init__(self, folder: Path, *, processes: bool, python: Path | None = None) -> None:
        self.folder = folder
        self._in_tests = python is None
        folder.mkdir()
        self.names: dict[str, Any] = {"__name__": "__main__"}
        # The address of a socket is short.
        self._tools = Path(tempfile.mkdtemp(prefix="pages-"))
        self._server = socket.socket(socket.AF_UNIX)
        address = str(self._tools / "s")
        self._server.bind(address)
        self._server.listen()
        if not processes:
            forward = self._tools / "memwal"
            forward.write_text(_FORWARD.format(python=sys.executable, address=address))
            forward.chmod(0o755)
        self.environment = {
            **{name: os.environ[name] for name in _KEPT if name in os.environ},
            "HOME": str(folder),
            "TERM": "dumb",
            "COLUMNS": "120",
            **(self._of_tests() if python is None else self._of_reader(python)),
        }
        self._shell: subprocess.Popen[bytes] | None = None

    def _of_tests(self) -> dict[str, str]:
        """Lead to the environment of the tests, in which nothing is installed."""
        for name in ("pip", "uv"):
            refuse = self._tools / name
            refuse.write_text("#!/bin/sh\necho 'say <!-- needs: a network -->' >&2; exit 69\n")
            refuse.chmod(0o755)
        path = [str(self._tools), str(Path(sys.executable).parent), os.environ["PATH"]]
        return {
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins")]),
            "LANCE_LOG": "error,lance::index=off",
        }

    def _of_reader(self, python: Path) -> dict[str, str]:
        """Lead to another Python, to uv, and to what this user downloaded before."""
        own = Path(sys.executable).parent
        (self._tools / "uv").symlink_to(own / "uv")
        others = [
            name for name in os.environ["PATH"].split(os.pathsep) if Path(name).absolute() != own
        ]
        caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        return {
            "PIP_CACHE_DIR": str(caches / "pip"),
            "UV_CACHE_DIR": str(caches / "uv"),
            **{name: os.environ[name] for name in os.environ if name.startswith(_OF_INSTALLERS)},
            "PATH": os.pathsep.join([str(self._tools), str(python.parent), *others]),
        }

    def close(self) -> None:
        """End the shell, and what it left running."""
        if self._shell is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._shell.pid, 15)
            for stream in (self._shell.stdin, self._shell.stdout):
                if stream is not None:
                    stream.close()
            self._shell.wait()
        self._server.close()
        shutil.rmtree(self._tools)

    def run(self, page: Page, *, slow: bool) -> None:
        """Set up what is given, and run the blocks that are to run, the slow ones or not."""
        for name in page.given:
            GIVEN[name](self.folder)
        for block in page.blocks:
            if block.runs and (slow or not block.slow):
                self.run_block(block)

    def run_block(self, block: Block) -> None:
        """Run one block, and compare how it ends with what its marks say."""
        for name in block.values("given"):
            GIVEN[name](self.folder)
        if block.language == "bash":
            output, outcome = self._bash(block, block.code)
        elif self._in_tests:
            output, outcome = self._python(block)
        else:
            program = self._tools / "block.py"
            program.write_text(block.code)
            output, outcome = self._bash(block, f"python {program}")
        wanted = next(iter(block.values("fails")), "0")
        assert outcome == wanted, f"{block.place} ended with {outcome}, not {wanted}:\n{output}"
        for text in block.values("prints"):
            assert text in output, f"{block.place} does not print {text!r}:\n{output}"

    def _python(self, block: Block) -> tuple[str, str]:
        printed = io.StringIO()
        # The traceback then names the line of the page.
        code = compile("\n" * block.line + block.code, block.page, "exec")
        with self._as_the_reader(), contextlib.redirect_stdout(printed):
            if not block.values("fails"):
                exec(code, self.names)
                return printed.getvalue(), "0"
            try:
                exec(code, self.names)
            except Exception as error:
                print(error)
                return printed.getvalue(), type(error).__name__
        return printed.getvalue(), "0"

    @contextlib.contextmanager
    def _as_the_reader(self) -> Iterator[None]:
        """Be where the shell of the page is, with its environment."""
        before, here = dict(os.environ), os.getcwd()
        tests_own = {key: before[key] for key in before if key.startswith("PYTEST")}
        try:
            os.environ.clear()
            os.environ.update(self.environment | tests_own)
            os.chdir(self.environment.get("PWD", self.folder))
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
            os.chdir(here)

    def _bash(self, block: Block, code: str) -> tuple[str, str]:
        script = self._tools / "block"
        script.write_text(code)
        state = self._tools / "environment"
        strict = "set +e" if block.values("fails") else "set -e"
        if self._shell is None:
            self._shell = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._tell("set -u\n")
        self._tell(
            f"trap 'printf \"{_END}%d\\n\" $?' EXIT; {strict}\n"
            f"source {script} < /dev/null; code=$?; set +e\n"
            f"env -0 > {state}; printf '{_END}%d\\n' $code\n"
        )
        output, code = self._answer()
        if state.exists():
            pairs = state.read_bytes().decode().split("\0")
            self.environment = dict(pair.split("=", 1) for pair in pairs if pair)
            state.unlink()
        return output, code

    def _tell(self, commands: str) -> None:
        if self._shell is None or self._shell.stdin is None:
            raise RuntimeError("the shell is not there")
        self._shell.stdin.write(commands.encode())
        self._shell.stdin.flush()

    def _answer(self) -> tuple[str, str]:
        """Answer ``memwal`` until the shell says that the block has ended."""
        if self._shell is None or self._shell.stdout is None:
            raise RuntimeError("the shell is not there")
        output = b""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._shell.stdout, selectors.EVENT_READ)
            waiting.register(self._server, selectors.EVENT_READ)
            while True:
                for key, _ in waiting.select():
                    if key.fileobj is self._server:
                        self._serve()
                        continue
                    part = os.read(key.fd, 65536)
                    output += part
                    text, found, code = output.decode(errors="replace").rpartition(_END)
                    if found and code.endswith("\n"):
                        return text, code.strip()
                    if not part:
                        return output.decode(errors="replace"), "no end"

    def _serve(self) -> None:
        """Do what one ``memwal`` was called for, with its folder, environment and streams."""
        from memwal.cli.commands.app import app

        connection, _ = self._server.accept()
        with connection:
            size, streams, _, _ = socket.recv_fds(connection, 8, 3)
            request = b""
            while len(request) < int.from_bytes(size, "big"):
                request += connection.recv(65536)
            arguments, folder, environment = json.loads(request)
            self.environment = {**environment, "PWD": folder}
            with contextlib.ExitStack() as stack:
                stdin, stdout, stderr = (
                    stack.enter_context(open(stream, mode))
                    for stream, mode in zip(streams, "rww", strict=True)
                )
                stack.enter_context(self._as_the_reader())
                stack.enter_context(contextlib.redirect_stdout(stdout))
                stack.enter_context(contextlib.redirect_stderr(stderr))
                patch = stack.enter_context(pytest.MonkeyPatch.context())
                patch.setattr(sys, "stdin", stdin)
                try:
                    code: Any = app(arguments, prog_name="memwal", standalone_mode=True)
                except SystemExit as end:
                    code = end.code
                except BaseException:
                    traceback.print_exc()
                    code = 70
            connection.sendall(array.array("B", [int(code or 0)]).tobytes())
