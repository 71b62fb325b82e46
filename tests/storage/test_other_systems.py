"""Processes in which what other systems lack is deleted before memwal is imported.

This is no Mac and no Windows: only the names are missing.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.stores.s3_emulator import S3Emulator

from memwal.errors import UnsupportedStoreError
from memwal.storage import uris
from memwal.storage.local import LocalStore
from memwal.storage.open import open_store
from memwal.util import system

TESTS = Path(__file__).parents[1]
CHILD = TESTS / "support" / "other_systems_child.py"
WRITTEN = {**{n: n for n in range(10) if n != 1}, 2: 20, 11: 11}


def run(*arguments: str, folder: Path) -> Any:
    """Run a process to its end, which is a kill; what it printed."""
    path = os.pathsep.join((str(TESTS), str(TESTS.parent)))
    done = subprocess.run(
        [sys.executable, str(CHILD), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 9, done.stderr
    return json.loads(done.stdout)


def state_of(found: dict[str, int]) -> dict[int, int]:
    return {int(key): value for key, value in found.items()}


def test_a_table_lives_without_what_linux_alone_has(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")

    assert state_of(run("posix", "write", uri, folder=tmp_path)) == WRITTEN
    assert state_of(run("posix", "go-on", uri, folder=tmp_path)) == {**WRITTEN, 12: 12}
    assert not [path for path in Path(uri).rglob(".*") if path.suffix == ".tmp"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["posix", "other"])
def test_everything_can_be_imported(tmp_path: Path, name: str) -> None:
    found = run(name, "imports", folder=tmp_path)

    assert found["failed"] == {}
    assert found["memory"] == "x"
    assert found["clock"]
    assert found["refused"] == (3 if name == "other" else 0)


@pytest.mark.slow
def test_a_table_in_an_object_store_lives_without_posix(
    tmp_path: Path, emulator: S3Emulator, bucket: str
) -> None:
    uri, options = f"s3://{bucket}/{uuid4().hex}", json.dumps(emulator.storage_options)

    assert state_of(run("other", "write", uri, options, folder=tmp_path)) == WRITTEN
    found = run("other", "go-on", uri, options, folder=tmp_path)
    assert state_of(found) == {**WRITTEN, 12: 12}


@pytest.mark.parametrize("name", ["fcntl", "dir_fd", "O_NOFOLLOW"])
def test_local_tables_need_locks_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(system, "MISSING", (name,))

    for open_local in (LocalStore, open_store):
        with pytest.raises(UnsupportedStoreError, match=name):
            open_local(tmp_path / "table")
    open_store(f"memory://{uuid4().hex}/table").create("a", b"x")


def test_a_path_with_a_drive_is_a_local_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import ntpath

    monkeypatch.setattr(os.path, "splitdrive", ntpath.splitdrive)

    assert uris.parse_uri("C:/tables/t").scheme == uris.LOCAL
    assert uris.parse_uri("s3://bucket/t").scheme == uris.S3
