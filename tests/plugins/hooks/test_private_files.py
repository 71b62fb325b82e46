import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from memwal_airflow.hooks.storage_options import (
    OPTIONS_FILE_NAME,
    remove_orphaned_files,
    write_private_file,
)
from support.processes import running_python

OPTIONS = {"aws_secret_access_key": "marker-77aa"}


def job(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir(mode=0o700)
    return folder


def test_a_file_for_this_user_alone(tmp_path: Path) -> None:
    path = write_private_file(OPTIONS, job(tmp_path, "one"))
    assert json.loads(path.read_text()) == OPTIONS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_private_file(OPTIONS, path.parent)


def test_those_of_others_at_work_are_left_alone(tmp_path: Path) -> None:
    path = write_private_file(OPTIONS, job(tmp_path, "one"))
    other = write_private_file({}, job(tmp_path, "two"))
    beside = job(tmp_path, "three") / "storage-options.json"
    beside.write_text("{}")
    assert remove_orphaned_files(tmp_path) == 0
    assert path.exists()
    assert other.exists()
    assert beside.exists()


def test_its_lock_goes_with_the_folder_of_the_job(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        path = write_private_file(OPTIONS, job(tmp_path, str(number)))
        shutil.rmtree(path.parent)
    remove_orphaned_files(tmp_path)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time\n"
        "from memwal_airflow.hooks.storage_options import write_private_file\n"
        f"print(write_private_file({OPTIONS!r}, pathlib.Path(sys.argv[1])), flush=True)\n"
        "time.sleep(600)\n"
    )
    with running_python(code, job(tmp_path, "killed")) as process:
        assert process.stdout is not None
        # Airflow, which the module imports, may log a line before.
        lines = (line.strip() for line in process.stdout)
        path = Path(next(line for line in lines if line.endswith(OPTIONS_FILE_NAME)))
        assert path.exists()
        assert remove_orphaned_files(tmp_path) == 0
    assert path.exists()
    write_private_file({}, job(tmp_path, "next"))
    assert not path.exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("{}")
    (job(tmp_path, "one") / OPTIONS_FILE_NAME).symlink_to(target)
    assert remove_orphaned_files(tmp_path) == 0
    assert target.exists()
