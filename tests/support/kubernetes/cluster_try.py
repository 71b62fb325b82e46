"""A try of a merge task whose driver runs in a cluster, as a process that a test can kill.

``python cluster_try.py TABLE``, with the settings of the test in the environment.
"""

import os
import sys
from types import SimpleNamespace
from typing import Any

from memwal_airflow.kubernetes import driver_pod
from memwal_airflow.operators.maintenance import MemWalMergeOperator
from memwal_airflow.spark import submit


def main() -> None:
    vars(submit)["job_environment"] = lambda **_: dict(os.environ)
    vars(driver_pod)["POLL_SECONDS"] = 0.1
    instance = SimpleNamespace(
        dag_id="dag",
        run_id="run",
        task_id="task",
        map_index=-1,
        try_number=1,
        xcom_push=lambda key, value: None,
    )
    context: Any = {"ti": instance, "params": {}, "outlet_events": {}}
    MemWalMergeOperator(task_id="merge", table=sys.argv[1]).execute(context)


if __name__ == "__main__":
    main()
