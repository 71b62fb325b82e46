"""The DAGs of a file or a folder, as the DAG processor of any supported Airflow loads them."""

from pathlib import Path
from typing import Any


def load_dag_bag(path: Path | str) -> Any:
    """Return the bag of the DAGs."""
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ModuleNotFoundError:  # Airflow 3.1
        from airflow.models.dagbag import DagBag

        return DagBag(path)
    return DagBag(path, bundle_name="dags-folder")
