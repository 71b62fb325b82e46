"""The flights demo as a whole, on a small scale and without Airflow."""

import io
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import airflow_upkeep
import demo
import lance
import psutil
import pytest
import readers
import session
from compare import Comparison
from fleet import Fleet, ProducerFailedError
from flightdata import KEY, truth
from rich.console import Console
from run import Progress, Settings, progress_file
from screen import Screen
from upkeep import UpkeepRun
from watch import Sample

FLIGHTS = 3_000


def summary_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def wait(fleet: Fleet) -> None:
    while fleet.running():
        time.sleep(0.05)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that killed a producer on its way."""
    folder = tmp_path_factory.mktemp("demo") / "run"
    arguments = ["--no-airflow", "--rows", str(FLIGHTS), "--producers", "2", "--seconds", "5"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "SAMPLE_SECONDS", 0.5)
        assert demo.main([*arguments, "--output", str(folder)]) == 0
    return folder


class TestDemo:
    @pytest.mark.slow
    def test_every_reader_agrees_with_the_truth(self, finished: Path) -> None:
        summary = summary_of(finished)
        assert summary["problems"] == []
        assert [one["reader"] for one in summary["comparisons"]] == [
            "memwal, before the checkpoint",
            "pylance, before the checkpoint",
            "memwal, after the checkpoint",
            "base table alone",
        ]
        assert all(one["equal"] and one["rows"] > 0 for one in summary["comparisons"])

    def test_nothing_was_left_out(self, finished: Path) -> None:
        figures = summary_of(finished)["figures"]
        stream = Settings.of(finished).stream()
        assert figures["flights"] == FLIGHTS
        assert figures["writes"] == len(stream)
        assert figures["deletes"] == stream.flights.cancelled.sum() > 0
        assert figures["producers_killed"] == 1
        assert figures["maintenance_runs"] > 0
        assert figures["maintenance_runs_failed"] == 0
        assert figures["generations"] > 8
        assert figures["base_table_commits"] > 0
        assert figures["scans"] > 0

    def test_the_killed_producer_was_started_again(self, finished: Path) -> None:
        starts = [Progress.of(progress_file(finished, number)).starts for number in range(2)]
        assert starts == [2, 1]

    def test_difference_is_found_and_told(
        self, finished: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A row is taken out of the base table behind memwal's back."""
        settings = Settings.of(finished)
        lost = truth(settings.stream().flights)[KEY][0].as_py()
        lance.dataset(settings.table).delete(f"{KEY} = '{lost}'")
        assert demo.main(["--resume", str(finished), "--no-kill"]) == 1
        assert f"missing: {lost}" in capsys.readouterr().out
        assert all(one["missing"] == 1 for one in summary_of(finished)["comparisons"])


@pytest.mark.slow
@pytest.mark.parametrize("component", ["db-migrate", "triggerer", "scheduler"])
def test_an_interrupt_leaves_nothing_running(tmp_path: Path, component: str) -> None:
    """Whatever part of Airflow was started last when it came."""
    folder = tmp_path / "run"
    arguments = [sys.executable, demo.__file__, "--rows", "3000", "--output", str(folder)]
    log = folder / "airflow" / "logs" / "components" / f"{component}.log"
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        while not log.exists():
            assert running.poll() is None
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        output, _ = running.communicate(timeout=240)

    assert running.returncode == demo.INTERRUPTED
    assert b"Traceback" not in output
    assert [
        process for process in psutil.process_iter(["cmdline"]) if _is_of(process, folder)
    ] == []


def _is_of(process: psutil.Process, folder: Path) -> bool:
    """Return whether a process belongs to a run: it names the folder, or works in it."""
    try:
        texts = [*process.cmdline(), process.cwd()]
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return False
    return any(str(folder) in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("on_spark", [False, True])
def test_airflow_maintains_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_spark: bool
) -> None:
    if on_spark:
        monkeypatch.setattr(airflow_upkeep, "SPARK_FROM_FLIGHTS", 0)
    assert demo.main(["--rows", "20000", "--output", str(tmp_path / "run")]) == 0
    summary = summary_of(tmp_path / "run")
    assert summary["problems"] == []
    assert summary["runs"]
    assert all(run["state"] == "success" for run in summary["runs"])
    jobs = [job["result"]["job"] for job in summary["jobs"]]
    assert {"merge", "index", "snapshot", "gc", "checkpoint"} <= set(jobs)
    assert (tmp_path / "run" / "spark-connect.log").exists() == on_spark
    # Producers wrote before Airflow ran.
    assert summary["figures"]["largest_backlog_rows"] > 0


def test_without_a_terminal_a_line_is_printed_when_something_changed() -> None:
    output = io.StringIO()
    console = Console(file=output, width=200)
    sample = Sample(
        seconds=1.0,
        version=1,
        backlog_rows=(0,),
        backlog_generations=(0,),
        index_lag=0,
        retained=0,
        writes=0,
    )
    run = UpkeepRun(name="1", started=0.0)

    def lines_after(sent: int, sample: Sample, *runs: UpkeepRun) -> int:
        progress = [Progress(acknowledged=sent, batches=100)]
        screen.show(progress=progress, sample=sample, runs=runs, scans=[], where="")
        return len(output.getvalue().splitlines())

    with Screen(console, run_name="rounds") as screen:
        assert [lines_after(sent, sample) for sent in (0, 5, 9, 10, 19)] == [1, 1, 1, 2, 2]
        assert lines_after(19, replace(sample, seconds=9.0, writes=9)) == 2
        assert lines_after(19, sample, run) == 3
        assert lines_after(19, replace(sample, version=2), run) == 4
        assert lines_after(19, replace(sample, version=2), replace(run, state="success")) == 5


class TestProducers:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        settings = Settings(
            table=str(tmp_path / "flights.lance"),
            rows=FLIGHTS,
            producers=2,
            airflow=False,
            slice_minutes=60,
            seconds=3.0,
            memtable_rows=200,
        )
        settings.save(tmp_path)
        session.open_or_create(settings)
        return settings

    @pytest.mark.slow
    def test_kills_and_sending_again_lose_and_repeat_nothing(
        self, tmp_path: Path, settings: Settings
    ) -> None:
        """Killed, set back by some batches, and started again; the other one is left alone."""
        fleet = Fleet(tmp_path, settings)
        fleet.start()
        path = progress_file(tmp_path, 0)
        while Progress.of(path).acknowledged < 50:
            assert fleet.running()
            time.sleep(0.01)
        fleet.kill(0)
        progress = Progress.of(path)
        assert 50 <= progress.acknowledged < progress.batches
        replace(progress, acknowledged=progress.acknowledged - 20).save(path)
        fleet.start(0)
        wait(fleet)
        assert [one.done for one in fleet.progress()] == [True, True]

        table = settings.open_table()
        expected = truth(settings.stream().flights)
        before = [
            self.compare(table, expected, readers.with_memwal),
            self.compare(table, expected, readers.with_pylance),
        ]
        table.checkpoint()
        after = [
            self.compare(table, expected, readers.with_memwal),
            self.compare(table, expected, readers.base_alone),
        ]
        for result in before + after:
            assert result.equal, result.examples

    def test_failure_of_a_producer_is_told_with_its_log(
        self, tmp_path: Path, settings: Settings
    ) -> None:
        replace(settings, table=str(tmp_path / "elsewhere.lance")).save(tmp_path)
        fleet = Fleet(tmp_path, settings)
        fleet.start(1)
        with pytest.raises(ProducerFailedError, match=r"elsewhere\.lance"):
            wait(fleet)

    def compare(self, table: Any, expected: Any, read: Any) -> Comparison:
        return readers.read_and_compare(table, expected, reader=read.__name__, read=read)
