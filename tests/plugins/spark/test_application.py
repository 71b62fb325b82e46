"""Applications in sessions of their own, and the folders that they leave."""

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from memwal_airflow.spark import application
from memwal_airflow.spark.application import SparkJob, new_job_folder, state_folder

from memwal.errors import InvalidInputError

Start = Callable[[str], SparkJob]
IN_PIECES = """
import sys, time
sys.stdout.write('a\\nb\\nc')
sys.stdout.flush()
time.sleep(0.5)
print('d')
sys.stdout.write('e')
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home" / "memwal" / "jobs"
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    return folder


def job_folder() -> Path:
    with new_job_folder("x") as folder:
        return folder


@pytest.fixture
def start() -> Iterator[Callable[[str], SparkJob]]:
    """Return a function that starts code as a job, which is ended at last."""
    started = []

    def run(code: str) -> SparkJob:
        command = [sys.executable, "-c", code]
        started.append(SparkJob.start(command, env=dict(os.environ), folder=job_folder()))
        return started[-1]

    yield run
    for job in started:
        job.end()
        job.clean_up()


def test_a_job_is_followed_to_its_end(state: Path, start: Start) -> None:
    job = start(IN_PIECES)
    assert list(job.lines(lambda: None)) == ["a", "b", "cd", "e"]
    assert (job.running, job.exit_code, job.result()) == (False, 0, None)
    assert stat.S_IMODE(job.folder.stat().st_mode) == 0o700
    assert job.folder.parent == state == state_folder()
    job.clean_up()
    assert not job.folder.exists()


def test_whoever_finds_it_follows_it_from_the_beginning(start: Start) -> None:
    job = start("print('first', flush=True); import time; time.sleep(0.5); print('last')")
    found = SparkJob.of(job.folder)
    assert found is not None
    assert found.running
    assert list(found.lines(lambda: None)) == ["first", "last"]
    assert not found.running
    assert found.exit_code is None


def test_whoever_waits_is_asked_whether_to_go_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "LEASE_CHECK_SECONDS", 0.0)
    job = start("import time; print('here', flush=True); time.sleep(600)")

    def look() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        list(job.lines(look))
    assert job.running
    job.end()
    assert not job.running


def test_folders_that_nobody_came_back_for_are_removed(state: Path, start: Start) -> None:
    done, running, half_made = start(""), start("import time; time.sleep(600)"), job_folder()
    assert done.child is not None
    done.child.wait(240)
    long_ago = time.time() - 2 * application.KEEP_SECONDS
    for folder in (done.folder, running.folder, half_made):
        os.utime(folder, (long_ago, long_ago))
    kept = job_folder()
    assert set(state.iterdir()) == {running.folder, kept}


def test_what_else_lies_there_keeps_no_job_from_starting(state: Path, start: Start) -> None:
    torn = job_folder()
    (torn / "process.json").write_text('{"host": "he')
    (state / "notes.txt").write_text("by hand")
    long_ago = time.time() - 2 * application.KEEP_SECONDS
    for path in (torn, state / "notes.txt"):
        os.utime(path, (long_ago, long_ago))
    kept = job_folder()
    assert set(state.iterdir()) == {kept, state / "notes.txt"}


def test_an_application_that_cannot_be_written_down_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []
    monkeypatch.setattr(application, "end_session", ended.append)
    folder = tmp_path / "job"
    (folder / "process.json").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        SparkJob.start([sys.executable, "-c", ""], env=dict(os.environ), folder=folder)
    assert len(ended) == 1


def test_a_long_log_is_read_in_pieces(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "MAX_READ_CHARACTERS", 10)
    job = start("print('a' * 25); print('b'); print('c' * 12, end='')")
    assert job.child is not None
    job.child.wait(240)
    found = list(job.lines(lambda: None))
    assert "".join(found) == "a" * 25 + "b" + "c" * 12
    assert max(map(len, found)) <= 20
    assert found[-1].startswith("c")


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIRFLOW__MEMWAL__STATE_FOLDER", str(tmp_path / "file" / "jobs"))
    with pytest.raises(InvalidInputError, match="state_folder"):
        state_folder()
