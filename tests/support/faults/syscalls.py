"""What this process does to the files of a folder, as the kernel sees it.

``strace`` attaches to the running process and all of its threads: Python, Lance's Rust threads and
child processes alike. Lance renames files past the C library, so that nothing less would see it.
Syncs are recorded and answered, and cost nothing: no test waits for a disk.
"""

import ctypes
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from memwal.storage import local_files

SYNCS = ("fsync", "fdatasync", "syncfs")

_WRITES = ("write", "writev", "pwrite64")
_NAMES = ("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat")
_FOLDERS = ("mkdir", "mkdirat", "rmdir")
_OPENS = ("open", "openat", "creat")
_COPY = "copy_file_range"
# Nobody makes these, and nothing here could tell what they do.
_STRANGE = (
    *("sendfile", "splice", "fallocate", "truncate", "ftruncate"),
    *("symlink", "symlinkat", "openat2", "pwritev", "pwritev2", "io_uring_setup"),
)
_TRACED = (*SYNCS, *_WRITES, *_NAMES, *_FOLDERS, *_OPENS, _COPY, *_STRANGE, "sync")

# As the system has them: tests that wait for no disk put others in their place.
_FSYNC, _SYNCFS = os.fsync, local_files.syncfs
_PR_SET_PTRACER = 0x59616D61
_ANYBODY = -1
_LONGEST = 1 << 28

_LINE = re.compile(r"(\d+) +(.*)", re.DOTALL)
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)(.*)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)", re.DOTALL)
_UNFINISHED = " <unfinished ...>"
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_FILE = re.compile(r"\w+<([^>]*)>(\(deleted\))?")
_BELOW_OPEN = re.compile(r"/proc/self/fd/(\d+)(/.+)", re.DOTALL)
_NOTE = "/memwal-note/"


@dataclass(frozen=True, slots=True)
class Call:
    """One call that changed a folder, or made it durable.

    Attributes
    ----------
    name : str
        Of the call, without what only says how paths are given: ``rename`` for ``renameat``.
    began, ended : int
        When, in lines of the record. What was not ended when a sync began is not in it.
    path : str
        Below the folder; of a file without a name, the folder and a number. Of a note, its number.
    target : str
        The new name of a link or rename; the file that a copy goes to.
    data : bytes
        What was written.
    offset : int or None
        Where, if not behind what was written last.
    size : int
        How much was copied.
    fresh : bool
        Whether what an opened file held is gone.
    """

    name: str
    began: int
    ended: int
    path: str
    target: str = ""
    data: bytes = b""
    offset: int | None = None
    size: int = 0
    fresh: bool = False


@dataclass
class Watch:
    """A record that is being made.

    Attributes
    ----------
    calls : list of Call
        There when it is over.
    """

    calls: list[Call] = field(default_factory=list)

    def note(self, number: int) -> None:
        """Leave a mark in the record."""
        try:
            os.rmdir(f"{_NOTE}{number}")
        except FileNotFoundError:
            return


@contextmanager
def watch(folder: Path, record: Path) -> Iterator[Watch]:
    """Record what this process does below a folder while the block runs.

    Parameters
    ----------
    record : Path
        A file to write to, elsewhere.
    """
    program = shutil.which("strace")
    if program is None:
        pytest.skip("strace is not installed; scripts/slow_tools.py brings it")
    _allow_to_attach(_ANYBODY)
    opened = _open_folders()
    command = [program, "-f", "-y", "-xx", "-s", str(_LONGEST), "-o", str(record)]
    command += ["-e", f"trace={','.join(_TRACED)}", "-e", f"inject={','.join(SYNCS)}:retval=0"]
    tracer = subprocess.Popen([*command, "-p", str(os.getpid())], stderr=subprocess.PIPE, text=True)
    found = Watch()
    try:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        if "attached" not in said:
            pytest.skip(f"strace may not look at this process: {said}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", _FSYNC)
            patch.setattr(local_files, "syncfs", _SYNCFS)
            yield found
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()
        _allow_to_attach(0)
    with record.open() as lines:
        found.calls = sorted(_calls(lines, str(folder), opened), key=lambda call: call.ended)


def _allow_to_attach(process: int) -> None:
    """Where only descendants may be attached to, this process must say that it may be."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(process), 0, 0, 0)


def _open_folders() -> dict[int, str]:
    """The folders that this process has open, by descriptor."""
    folders = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{name}")
            if os.path.isdir(path):
                folders[int(name)] = path
    return folders


def _calls(lines: Iterator[str], root: str, opened: dict[int, str]) -> Iterator[Call]:
    """Parse a record; ``opened`` are the folders that were open when it began."""
    pending: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(lines):
        parts = _LINE.match(line)
        assert parts is not None, line[:200]
        thread, text = parts[1], parts[2].rstrip("\n")
        began = number
        if text.endswith(_UNFINISHED):
            pending[thread] = (number, text.removesuffix(_UNFINISHED))
            continue
        resumed = _RESUMED.match(text)
        if resumed is not None:
            began, start = pending.pop(thread)
            text = start + resumed[1]
        call = _CALL.match(text)
        # Signals, ends of threads, and calls that failed or never returned, change nothing.
        if call is None or (int(call[3]) < 0 and call[1] != "rmdir"):
            continue
        if call[1] in _OPENS:
            opened[int(call[3])] = next(_files("at" + call[4]))
        found = _call(call, began, number, root, opened)
        if found is not None:
            yield found


def _call(
    call: re.Match[str], began: int, ended: int, root: str, opened: Mapping[int, str]
) -> Call | None:
    name, arguments, result = call[1], call[2], int(call[3])

    def of(path: str, target: str | None = None, **more: object) -> Call | None:
        inside = _below(root, path)
        other = None if target is None else _below(root, target)
        assert (inside is None) == (other is None) or target is None, f"in or out: {call[0][:500]}"
        if inside is None:
            return None
        short = "open" if name in _OPENS else re.sub(r"at2?$", "", name)
        return Call(short, began, ended, inside, other or "", **more)  # type: ignore[arg-type]

    if name in _WRITES:
        data = b"".join(_bytes(text) for text in _TEXT.finditer(arguments))[:result]
        offset = int(arguments.rsplit(", ", 1)[1]) if name == "pwrite64" else None
        return of(next(_files(arguments)), data=data, offset=offset)
    if name in SYNCS:
        return of(next(_files(arguments)))
    if name == _COPY:
        assert arguments.count("NULL") == 2, call[0]
        return of(*_files(arguments), size=result)
    if name in _OPENS:
        if not re.search(r"O_WRONLY|O_RDWR|O_CREAT", arguments):
            return None
        opened = next(_files("at" + call[4]))
        assert "O_APPEND" not in arguments or _below(root, opened) is None, call[0]
        return of(opened, fresh="O_TRUNC" in arguments)
    paths = [_named(path, opened) for path in _paths(arguments)]
    if name == "rmdir" and paths[0].startswith(_NOTE):
        return Call("note", began, ended, paths[0].removeprefix(_NOTE))
    if result < 0:
        return None
    if name == "unlinkat" and "AT_REMOVEDIR" in arguments:
        name = "rmdir"
    if name == "linkat" and paths[0].startswith("/proc/self/fd/"):
        return of(next(_files(arguments)), paths[1])
    if name in _STRANGE or "RENAME_" in arguments:
        inside = [path for path in (*paths, *_files(arguments)) if _below(root, path) is not None]
        assert not inside, f"what does this do? {call[0][:500]}"
        return None
    assert name != "sync"
    return of(*paths)


def _below(root: str, path: str) -> str | None:
    """Path below the root, "" for the root itself, None for anything else."""
    if path == root:
        return ""
    return path[len(root) + 1 :] if path.startswith(root + os.sep) else None


def _files(arguments: str) -> Iterator[str]:
    """The files that the descriptors among the arguments stand for."""
    return (_decoded(found) for found in _FILE.finditer(_TEXT.sub("", arguments)))


def _paths(arguments: str) -> list[str]:
    """Absolute paths among the arguments."""
    folders = [*re.findall(r"\w+<([^>]*)>, \"", arguments), "", ""]
    texts = (_bytes(text) for text in _TEXT.finditer(arguments))
    return [
        os.path.abspath(os.fsdecode(os.path.join(_unquoted(folder), text)))
        for folder, text in zip(folders, texts, strict=False)
    ]


def _named(path: str, opened: Mapping[int, str]) -> str:
    """The path of what is below an open folder, by that folder's own path."""
    below = _BELOW_OPEN.match(path)
    return path if below is None else opened[int(below[1])] + below[2]


def _bytes(text: re.Match[str]) -> bytes:
    assert text[2] is None, "more was written than the record can hold"
    return _unquoted(text[1])


def _decoded(file: re.Match[str]) -> str:
    """Path of a descriptor, which says so when the file has no name any more, or not yet."""
    return os.fsdecode(_unquoted(file[1])) + (" (deleted)" if file[2] else "")


def _unquoted(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
