"""The package loads nothing heavy: Airflow's tasks import it while they are parsed."""

from __future__ import annotations

import subprocess
import sys


def test_nothing_heavy_is_loaded() -> None:
    script = (
        "import sys, memwal.fleet; "
        "heavy = {'lance', 'pyarrow', 'numpy', 'sqlalchemy', 'pyspark', 'airflow', 'rich'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
