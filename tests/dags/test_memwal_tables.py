"""The DAG file as Airflow loads it, and, marked slow, as Airflow runs it."""

import json
from pathlib import Path
from typing import Any

from support.processes import python_environment, run_python

REPOSITORY = Path(__file__).resolve().parents[2]
LOAD = """
import json, os, sys
from support.airflow.dag_bag import load_dag_bag
bags = []
for env in json.loads(sys.argv[2]):
    os.environ.update(env)
    bag = load_dag_bag(sys.argv[1])
    dags = {name: sorted(dag.task_ids) for name, dag in bag.dags.items()}
    bags.append({"errors": bag.import_errors, "dags": dags})
print("FOUND" + json.dumps(bags))
"""


def load(tmp_path: Path, *envs: dict[str, str]) -> Any:
    """Load the folder with each environment, in one process, as the DAG processor does."""
    settings = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    environment = python_environment(without="AIRFLOW") | settings
    done = run_python(LOAD, REPOSITORY / "dags", json.dumps(envs), env=environment)
    return json.loads(done.stdout.partition("FOUND")[2])


def test_it_loads_or_says_what_to_set(tmp_path: Path, registered: Any) -> None:
    complete, without = load(tmp_path, registered.env, {"MEMWAL_CATALOG_SNAPSHOT": ""})

    assert complete == {
        "errors": {},
        "dags": {
            "memwal__flights": [
                "collect",
                "compact",
                "done",
                "gate",
                "index",
                "merge",
                "recover",
                "snapshot",
            ],
            "memwal_due": ["start"],
            "memwal_fleet": [
                "choose_tables",
                "export",
                "list_folders",
                "notify",
                "prune",
                "register_folder",
                "start_unwatched",
                "verify",
            ],
        },
    }
    assert set(without["dags"]) == {"memwal_due", "memwal_fleet"}
    (error,) = without["errors"].values()
    assert "MEMWAL_CATALOG_SNAPSHOT" in error
