"""DAG bundle with the DAG files of the installed package, or of the checkout.

Airflow's settings name the class :class:`MemWalDagBundle`, so they need no path of the machine; see
``docs/airflow.md``. ``python -m memwal_airflow.dag_bundle`` prints the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

_PACKAGE = Path(__file__).resolve().parent


def dags_folder() -> Path:
    """Return the folder of the DAG files: inside the package in a wheel, else of the checkout."""
    installed = _PACKAGE / "dags"
    return installed if installed.is_dir() else _PACKAGE.parents[1] / "dags"


class MemWalDagBundle(LocalDagBundle):
    """The DAGs of all tables and of the fleet; takes the options of every bundle."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path=str(dags_folder()), **options)


if __name__ == "__main__":
    print(dags_folder())
