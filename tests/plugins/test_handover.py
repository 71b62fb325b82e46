from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from memwal_airflow.handover import private_file, sweep

from memwal.errors import InvalidInputError

OPTIONS = {"aws_secret_access_key": "marker-77aa"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "private"


def test_a_file_for_this_user_alone_while_the_block_lasts(folder: Path) -> None:
    with private_file(OPTIONS, folder=folder) as name:
        path = Path(name)
        assert json.loads(path.read_text()) == OPTIONS
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        # Whoever else starts meanwhile leaves it alone.
        with private_file({}, folder=folder) as other:
            assert other != name
        assert path.exists()
    assert list(folder.iterdir()) == []


def test_the_usual_folder_belongs_to_the_user() -> None:
    with private_file(OPTIONS) as name:
        assert str(os.getuid()) in Path(name).parent.name


def test_it_goes_when_the_block_fails(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), private_file(OPTIONS, folder=folder):
        raise ZeroDivisionError
    assert list(folder.iterdir()) == []


def test_what_a_killed_process_left_is_swept_by_the_next(folder: Path) -> None:
    code = (
        "import pathlib, sys, time\n"
        "from memwal_airflow.handover import private_file\n"
        f"with private_file({OPTIONS!r}, folder=pathlib.Path(sys.argv[1])) as path:\n"
        "    print(path, flush=True)\n"
        "    time.sleep(600)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, env=env
    )
    assert process.stdout is not None
    with process.stdout:
        path = Path(process.stdout.readline().decode().strip())
    assert path.exists()
    assert sweep(folder) == 0
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert path.exists()
    with private_file({}, folder=folder):
        assert not path.exists()


def test_a_folder_that_others_can_enter_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o755)
    with pytest.raises(InvalidInputError, match="0700"), private_file(OPTIONS, folder=folder):
        pass
    link = tmp_path / "link"
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    link.symlink_to(target)
    with (
        pytest.raises(InvalidInputError, match="folder of this user"),
        private_file(OPTIONS, folder=link),
    ):
        pass
