"""Where the DAG files are: in the installed package, or in the checkout it is run from.

An Airflow that memwal is installed into finds them by the class :class:`MemWalDagBundle`, without a
path of its machine in the settings; ``docs/airflow.md`` has them.

``python -m memwal_airflow.dag_bundle`` prints the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

_PACKAGE = Path(__file__).resolve().parent


def dags_folder() -> Path:
    """Folder of the DAG files.

    A wheel has them inside the package ``memwal_airflow``; a checkout two folders above.
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
