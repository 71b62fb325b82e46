"""What is looked at every second while the load runs."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

import memwal
from load_test.processes import KINDS, LoadProcesses
from load_test.state import WRITES, Events, of_kind
from memwal.format.paths import APPLIED_DIR, MEM_WAL_DIR

FILES = {
    "data": "rows of the base table",
    "_deletions": "deleted rows of the base table",
    "_indices": "indexes of the base table",
    "_versions": "versions of the base table",
    "_transactions": "transactions",
    "wal": "logs",
    "manifest": "manifests of regions",
    "generations": "generations",
    "other": "other",
}
"""Kinds of files, as the folders are called."""

# Walking through the folders may take this share of the time.
_SHARE_OF_WALKS = 0.02
_MIB = 1 << 20


class Sampler:
    """Samples of a table under load and of the processes that work on it.

    Attributes
    ----------
    samples : list of dict
        All so far; each is a line of ``samples.jsonl`` as well.
    """

    def __init__(self, folder: Path, table: memwal.Table, processes: LoadProcesses) -> None:
        self._table, self._load_processes = table, processes
        self._root = Path(table.uri)
        self._events = Events(folder / "events")
        self._output = (folder / "samples.jsonl").open("w")
        self._device = _device(folder)
        self._processes: dict[int, psutil.Process] = {}
        self._processor: dict[int, float] = {}
        self._disk = self._disk_counters()
        self._files: dict[str, dict[str, int]] = {"files": {}, "bytes": {}}
        self._next_walk = 0.0
        self.samples: list[dict[str, Any]] = []
        psutil.cpu_percent()

    def sample(self, rate: float) -> dict[str, Any]:
        """Look at everything once."""
        started, now = time.perf_counter(), time.time()
        sample = {
            "at": now,
            "rate": rate,
            **self._written(),
            **self._waiting(),
            **self._used(now),
            **self._stored(),
            "load": os.getloadavg()[0],
            "busy": psutil.cpu_percent() / 100,
            "kills": len(self._load_processes.kills),
            "free": shutil.disk_usage(self._root).free,
        }
        sample["cost"] = time.perf_counter() - started
        self.samples.append(sample)
        self._output.write(json.dumps(sample) + "\n")
        self._output.flush()
        return sample

    def close(self) -> None:
        self._output.close()

    def _written(self) -> dict[str, float]:
        events = self._events.new()
        writes = of_kind(events, *WRITES)
        return {
            "rows": int(writes["rows"].sum()),
            "calls": len(writes),
            "waited": float(of_kind(events, "waited")["seconds"].sum()),
        }

    def _waiting(self) -> dict[str, float]:
        status = self._table.status()
        return {
            "generations": status.backlog_generations,
            "backlog_rows": status.backlog_rows,
            "backlog_bytes": status.backlog_bytes,
            "oldest": status.oldest_backlog_seconds or 0.0,
            "log_entries": status.unflushed_wal_entries,
            "retained": sum(region.retained_generations for region in status.regions),
            "index_generations": max((lag.generations for lag in status.indexes), default=0),
            "index_rows": max((lag.rows or 0 for lag in status.indexes), default=0),
            "small_fragments": status.small_fragments or 0,
            "base_rows": status.base_rows or 0,
            "base_bytes": status.base_bytes or 0,
            "version": status.version,
            "snapshot_age": status.snapshot_age_seconds or 0.0,
        }

    def _used(self, now: float) -> dict[str, Any]:
        # Of the first sample, nothing is known but what there is.
        seconds = now - self.samples[-1]["at"] if self.samples else math.inf
        memory: Counter[str] = Counter(dict.fromkeys((*KINDS, "this"), 0))
        processor: Counter[str] = Counter(dict.fromkeys((*KINDS, "this"), 0.0))
        for kind, pid in (*self._load_processes.pids(), ("this", os.getpid())):
            try:
                process = self._processes.setdefault(pid, psutil.Process(pid))
                with process.oneshot():
                    times = process.cpu_times()
                    memory[kind] += process.memory_info().rss
            except psutil.Error:
                # It was killed, and another one takes its place.
                self._processes.pop(pid, None)
                continue
            used = times.user + times.system
            processor[kind] += (used - self._processor.get(pid, used)) / seconds
            self._processor[pid] = used
        disk = self._disk_counters()
        read, wrote, busy = (new - old for new, old in zip(disk, self._disk, strict=True))
        self._disk = disk
        return {
            "memory": dict(memory),
            "processor": dict(processor),
            "read_mib": read / seconds / _MIB,
            "wrote_mib": wrote / seconds / _MIB,
            "disk_busy": busy / 1_000 / seconds,
        }

    def _stored(self) -> dict[str, dict[str, int]]:
        """Files and bytes by kind; of a moment ago where looking takes long."""
        started = time.perf_counter()
        if started >= self._next_walk:
            self._files = stored(self._root)
            ended = time.perf_counter()
            self._next_walk = ended + (ended - started) / _SHARE_OF_WALKS
        return self._files

    def _disk_counters(self) -> tuple[int, int, int]:
        """Bytes that the disk read and wrote, and milliseconds that it worked."""
        disks = psutil.disk_io_counters(perdisk=True) or {}
        counters = disks.get(self._device)
        if counters is None:
            return 0, 0, 0
        return counters.read_bytes, counters.write_bytes, getattr(counters, "busy_time", 0)


def stored(root: Path) -> dict[str, dict[str, int]]:
    """Files below a table, and their bytes, by kind."""
    files, sizes = Counter(dict.fromkeys(FILES, 0)), Counter(dict.fromkeys(FILES, 0))
    for kind, size in _walk(str(root), ()):
        files[kind] += 1
        sizes[kind] += size
    return {"files": dict(files), "bytes": dict(sizes)}


def _walk(folder: str, parts: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(entry.path, (*parts, entry.name))
                else:
                    yield _kind(parts), entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        # Collected while we looked.
        return


def _kind(folders: tuple[str, ...]) -> str:
    if not folders or folders[0] != MEM_WAL_DIR:
        return folders[0] if folders and folders[0] in FILES else "other"
    inside = folders[2] if len(folders) > 2 else "other"
    if inside in FILES:
        return inside
    return "other" if inside in ("other", APPLIED_DIR) else "generations"


def _device(folder: Path) -> str:
    """Name of the disk that a folder is on, as the system counts its work."""
    number = os.stat(folder).st_dev
    return Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name
