"""The scheduler imports what its tasks need, and its forks work."""

import subprocess
import sys
import textwrap

import pytest
from memwal_airflow.notifications import listener
from support.data.tables import MakeTable, rows


class Job:
    """As a component of Airflow names itself."""


class TaskRunnerMarker:
    """As a task does."""


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(program), *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_children_of_a_process_that_imported_all_of_it(make_table: MakeTable) -> None:
    table = make_table()
    table.upsert(rows({1: 1, 2: 2}))

    told = run(
        """
        import os, sys
        import pyarrow
        threads = len(os.listdir("/proc/self/task"))
        from memwal_airflow.preload import MODULES, preload
        preload()
        # Nothing of Lance runs that a fork would miss.
        assert len(os.listdir("/proc/self/task")) == threads
        for _ in range(3):
            child = os.fork()
            if child == 0:
                import memwal
                table = memwal.open(sys.argv[1])
                known = set(sys.modules)
                table.merge()
                late = sorted(name for name in set(sys.modules) - known if "memwal" in name)
                print(late, flush=True)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """,
        table.uri,
    )

    # Airflow logs to the same stream.
    assert [line for line in told.splitlines() if line.startswith("[")] == ["[]"] * 3
    assert table.base().dataset.count_rows() == 2


def test_the_plugin_brings_no_library_of_tables() -> None:
    """Every process of Airflow loads it."""
    told = run(
        """
        import sys
        import airflow.plugins_manager
        import memwal_airflow.plugin
        print([name for name in ("lance", "pyarrow", "pyspark") if name in sys.modules])
        """
    )
    assert told.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("component", "executor", "imports"),
    [
        (Job(), "LocalExecutor", True),
        (Job(), "CeleryExecutor,LocalExecutor", True),
        (Job(), "KubernetesExecutor", False),
        (TaskRunnerMarker(), "LocalExecutor", False),
    ],
)
def test_who_imports_early(
    monkeypatch: pytest.MonkeyPatch, component: object, executor: str, imports: bool
) -> None:
    called: list[bool] = []
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    monkeypatch.setattr("memwal_airflow.preload.preload", lambda: called.append(True))

    listener.on_starting(component)

    assert bool(called) is imports
