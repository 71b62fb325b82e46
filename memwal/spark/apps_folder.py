"""Where the Spark applications are: in the installed package, or in the checkout it is run from.

``python -m memwal.spark.apps_folder`` prints it, for a shell that calls ``spark-submit`` itself::

    spark-submit $(python -m memwal.spark.apps_folder)/merge.py --table ...
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def apps_folder() -> Path:
    """Folder of ``merge.py`` and the other applications.

    A wheel has them inside the package ``memwal``; a checkout beside it.
    """
    installed = _PACKAGE / "spark_apps"
    return installed if installed.is_dir() else _PACKAGE.parent / "spark_apps"


if __name__ == "__main__":
    print(apps_folder())
