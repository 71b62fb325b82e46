"""The DAG file as Airflow loads it, and, marked slow, as Airflow runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
LOAD = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1], bundle_name="dags-folder")
print("FOUND" + json.dumps({
    "errors": bag.import_errors,
    "dags": {name: sorted(dag.task_ids) for name, dag in bag.dags.items()},
}))
"""


def load(tmp_path: Path, env: dict[str, str]) -> Any:
    """Load the folder in a process of its own, as the DAG processor does."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    settings = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "plugins"), str(REPOSITORY)]),
    }
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(REPOSITORY / "dags")],
        env={**clean, **settings, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.partition("FOUND")[2])


def test_it_loads_without_errors(tmp_path: Path, registered: Any) -> None:
    found = load(tmp_path, registered.env)
    assert found == {
        "errors": {},
        "dags": {
            "memwal__flights": [
                "announce_indexed",
                "collect",
                "compact",
                "index",
                "merge",
                "plan",
                "plan_indexes",
                "quality",
                "region_problems",
                "snapshot",
                "wait_for_backlog",
            ],
            "memwal_fleet": ["choose_tables", "export", "notify", "prune", "verify"],
        },
    }


def test_without_configuration_the_import_error_says_what_to_set(tmp_path: Path) -> None:
    found = load(tmp_path, {"MEMWAL_CATALOG_SNAPSHOT": ""})
    assert set(found["dags"]) == {"memwal_fleet"}
    (error,) = found["errors"].values()
    assert "MEMWAL_CATALOG_SNAPSHOT" in error
