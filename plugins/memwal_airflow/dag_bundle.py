"""DAG bundle with the DAG files of the installed package, or of the checkout.

An Airflow with memwal installed finds the files by the class :class:`MemWalDagBundle`, without a
path of the machine in its settings; ``docs/airflow.md`` shows them.

``python -m memwal_airflow.dag_bundle`` prints the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

_PACKAGE = Path(__file__).resolve().parent


def dags_folder() -> Path:
    """Return the folder of the DAG files.

    In a wheel it is inside the package ``memwal_airflow``, in a checkout two folders above.
    """
    installed = _PACKAGE / "dags"
    return installed if installed.is_dir() else _PACKAGE.parents[1] / "dags"


class MemWalDagBundle(LocalDagBundle):
    """The DAGs of all tables and of the fleet, as a DAG bundle of Airflow.

    Parameters
    ----------
    **options
        As of every bundle: ``name``, ``refresh_interval`` (seconds) and the rest.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(path=str(dags_folder()), **options)


if __name__ == "__main__":
    print(dags_folder())
