"""A process on a system that has less: ``other_systems_child.py SYSTEM STEP [URI] [OPTIONS]``.

What the system lacks is deleted from ``os``, ``fcntl``, ``ctypes`` and ``time`` before memwal is
imported. Steps: ``imports`` all modules; ``write`` some rows and die; ``go-on`` from there, with
all jobs. Prints what it found, as JSON.
"""

import ctypes
import fcntl
import importlib
import json
import os
import pkgutil
import sys
import time
from typing import Any

LINUX = {
    os: (
        *("O_TMPFILE", "O_PATH", "O_DIRECT", "O_NOATIME", "O_LARGEFILE", "O_RSYNC"),
        *("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate"),
        *("fdatasync", "copy_file_range", "splice", "eventfd", "memfd_create", "pidfd_open"),
        *("getrandom", "listxattr", "setxattr", "getxattr", "unshare", "setns"),
    ),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI"),
    fcntl: ("F_OFD_SETLK", "F_ADD_SEALS", "F_SETPIPE_SZ", "F_NOTIFY"),
}
"""What Linux has, and other systems like it do not."""

POSIX = {
    os: (
        *LINUX[os],
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "O_NOCTTY"),
        *("pread", "pwrite", "register_at_fork", "fork", "forkpty", "killpg", "setsid", "nice"),
        *(
            "getuid",
            "geteuid",
            "getgid",
            "getpgid",
            "sysconf",
            "sync",
            "statvfs",
            "mkfifo",
            "uname",
        ),
    ),
    time: (*LINUX[time], "clock_gettime", "clock_settime", "CLOCK_MONOTONIC", "CLOCK_REALTIME"),
}
"""What POSIX has, and other systems do not."""

C_CALLS = ("syncfs", "sync_file_range", "statfs", "statx", "malloc_trim", "mallopt", "prctl")
FULL_SYNC = 51


def take(names: dict[Any, tuple[str, ...]]) -> None:
    for module, found in names.items():
        for name in found:
            if hasattr(module, name):
                delattr(module, name)


def become_posix() -> None:
    """Lack what Linux alone has; drives with a cache."""
    take(LINUX)
    isdir, call = os.path.isdir, fcntl.fcntl
    os.path.isdir = lambda path: not str(path).startswith("/proc") and isdir(path)

    class Library(ctypes.CDLL):
        def __getattr__(self, name: str) -> Any:
            if name in C_CALLS:
                raise AttributeError(name)
            return super().__getattr__(name)

    def fcntl_or_full_sync(descriptor: int, command: int, *rest: Any) -> Any:
        return os.fsync(descriptor) if command == FULL_SYNC else call(descriptor, command, *rest)

    ctypes.CDLL = Library  # type: ignore[misc]
    fcntl.F_FULLFSYNC = FULL_SYNC  # type: ignore[attr-defined]
    fcntl.fcntl = fcntl_or_full_sync  # type: ignore[assignment]


def become_other() -> None:
    """Lack POSIX; what others import of it on this machine is imported before."""
    for name in (
        *("asyncio", "multiprocessing", "concurrent.futures.process", "subprocess", "tempfile"),
        *("lance", "lance_namespace", "obstore", "pyarrow.dataset", "pyarrow.compute", "psutil"),
        *("sqlalchemy", "sqlalchemy.dialects.sqlite", "alembic.command", "typer", "rich.console"),
        *("opentelemetry.metrics", "opentelemetry.trace", "prometheus_client", "pandas", "duckdb"),
        *("pyspark", "pyspark.sql", "airflow"),
    ):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    take(POSIX)
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None  # type: ignore[assignment]
    os.supports_dir_fd, os.supports_fd = set(), set()

    class Library(ctypes.CDLL):
        def __init__(self, name: str | None, *rest: Any, **more: Any) -> None:
            if name is None:
                raise TypeError("a name is needed")
            super().__init__(name, *rest, **more)

    ctypes.CDLL = Library  # type: ignore[misc]


def imports() -> object:
    """Import everything, and say what a local table and one in memory answer."""
    import memwal

    failed = {}
    for module in pkgutil.walk_packages(memwal.__path__, "memwal.", onerror=lambda name: None):
        if module.name.endswith("__main__") or ".migrations." in module.name:
            continue
        try:
            importlib.import_module(module.name)
        except Exception as error:
            failed[module.name] = f"{type(error).__name__}: {error}"
    from memwal.errors import TableSetupError, UnsupportedStoreError
    from memwal.storage.open import open_store
    from memwal.util.clock import boot_seconds
    from memwal.util.memory import release_free_memory

    release_free_memory()
    store = open_store("memory://other/table")
    store.create("a", b"x")
    refused = []
    for uri in (os.path.join(os.getcwd(), "table"), "table", "file:///table"):
        try:
            memwal.open(uri)
        except UnsupportedStoreError:
            refused.append(uri)
        except TableSetupError:
            # There is no table, and one could be there.
            continue
    return {
        "failed": failed,
        "refused": len(refused),
        "memory": store.get("a").decode(),
        "clock": boot_seconds() > 0,
    }


def write(uri: str, options: dict[str, str]) -> object:
    """Create a table, write, flush, merge, write again, and die."""
    from support.data.tables import SCHEMA, keys, rows, state

    import memwal

    table = memwal.create(
        uri,
        SCHEMA,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
        maintained_indexes=["id_idx"],
        storage_options=options,
    )
    writer = table.writer()
    writer.upsert(rows({n: n for n in range(10)}))
    writer.flush()
    table.merge()
    writer.delete(keys(1))
    writer.upsert(rows({2: 20, 11: 11}))
    return state(writer)


def go_on(uri: str, options: dict[str, str]) -> object:
    """Replay what the process before wrote, and do everything else."""
    from support.data.tables import rows, state

    import memwal
    from memwal.jobs.verify import verify

    table = memwal.open(uri, storage_options=options)
    with table.writer() as writer:
        writer.claim()
        writer.upsert(rows({12: 12}))
    table.merge()
    table.build_indexes()
    table.build_snapshot()
    table.compact(min_fragments=2)
    for _ in range(2):
        table.collect_garbage(dry_run=False, grace_seconds=0, retention_seconds=0)
    assert verify(table.location).clean
    return state(table)


def main() -> None:
    """Become the system, and do the step."""
    become, step = sys.argv[1:3]
    {"posix": become_posix, "other": become_other}[become]()
    if step == "imports":
        found = imports()
    else:
        options = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
        found = {"write": write, "go-on": go_on}[step](sys.argv[3], options)
    # Like a kill: nothing is closed.
    os.write(1, json.dumps(found).encode())
    os._exit(9)


if __name__ == "__main__":
    main()
