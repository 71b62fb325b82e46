"""Run the tests that count with other versions of the packages around memwal.

Usage: ``python scripts/compat.py [--pylance newest] [--lancedb 0.39] [--airflow 3.1]
[--sqlalchemy 2.0] [--spark 4.0] [--python 3.12] [--only CHECK]``. The newest release of each named
version is taken; ``newest`` is the newest of all, pre-releases too. Those of pylance and LanceDB
may be outside of memwal's range. Every other package is that of the lock if it fits. The
environment is kept in ``.compat`` until the lock changes; without it, newer releases are found. The
results replace those of the same versions in the table of ``docs/compatibility.md``. The exit code
is 1 if a check failed, or 3 if the packages do not fit together.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.oracles.facts import FACTS  # noqa: E402

PAGE = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- versions -->", "<!-- end of versions -->"

NOT_POSSIBLE: Final = 3
NEWEST: Final = "newest"

PACKAGES: Final = {
    "pylance": "pylance",
    "LanceDB": "lancedb",
    "Airflow": "apache-airflow",
    "SQLAlchemy": "sqlalchemy",
    "PySpark": "pyspark",
}
"""First columns of the table, which Python follows."""

CONSTRAINTS: Final = {("apache-airflow", "3.2"): "svcs<26\n"}
"""What a version needs beside its own bounds.

Airflow 3.2 cannot run ``DAG.test()`` with a newer svcs.
"""

CHECKS: Final = {
    "facts": (
        *sorted({f"tests/{test}" for fact in FACTS for test in fact.tests}),
        "tests/golden",
        "tests/canary/test_future_tables.py",
    ),
    "DAGs and sensors": ("tests/dags/test_memwal_tables.py", "tests/plugins/sensors"),
    "life of a table": ("tests/dags/test_in_airflow.py::test_a_table_is_maintained",),
    "API of the page": ("tests/plugins/web/test_app.py", "tests/plugins/web/test_views.py"),
    "page in a browser": ("tests/dags/test_page_in_airflow.py",),
    "catalog": ("tests/catalog",),
    "Spark jobs": (
        "tests/spark/test_runner.py",
        "tests/spark/test_cluster_jobs.py",
        "tests/spark_apps/test_submit.py::test_a_merge_that_is_killed_and_run_again",
    ),
    "Spark reads": ("tests/spark/test_data_source.py",),
    "Spark writes": ("tests/spark/sink",),
    "Spark Connect": ("tests/spark/test_connect.py",),
}
"""The other columns of the table: the tests of each, slow ones included."""


def main() -> int:
    """Make the environment, run the checks in it, and write down the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    names = ("pylance", "lancedb", "airflow", "sqlalchemy", "spark")
    for name in names:
        parser.add_argument(f"--{name}", metavar="VERSION", help="such as 3.1; default: the lock's")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python", metavar="VERSION", default=here, help="default: this one")
    parser.add_argument("--only", choices=CHECKS, action="append", help="default: as concerns them")
    options = parser.parse_args()
    asked = zip(PACKAGES.values(), (getattr(options, name) for name in names), strict=True)
    wanted = {package: version for package, version in asked if version}
    python = environment(wanted, options.python)
    if python is None:
        print(f"no environment with {wanted} and Python {options.python}", file=sys.stderr)
        return NOT_POSSIBLE
    chosen = options.only or checks_of(wanted)
    passed = {name: check(python, CHECKS[name]) for name in chosen}
    row = {**versions(python), **{name: "passes" if ok else "fails" for name, ok in passed.items()}}
    PAGE.write_text(with_row(PAGE.read_text(), row))
    print("\n".join(f"{name}: {value}" for name, value in row.items()))
    return 0 if all(passed.values()) else 1


def checks_of(wanted: Mapping[str, str]) -> list[str]:
    """Return the names of the checks of some versions; facts if it is of none, or one of Lance."""
    has_facts = not wanted or {"pylance", "lancedb"} & wanted.keys()
    return [name for name in CHECKS if name != "facts" or has_facts]


def environment(
    wanted: Mapping[str, str], python_version: str, extras: Sequence[str] = ("dev",)
) -> Path | None:
    """Return the Python of an environment with these versions, or None if they do not fit."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    names = [f"{name}-{version}" for name, version in sorted(wanted.items())]
    folder = ROOT / ".compat" / "_".join([*names, *extras, f"python-{python_version}"])
    python, lock = folder / "bin" / "python", folder / "lock.txt"
    pins, fixed = folder / "pins.txt", folder / "overrides.txt"
    sources = ("pyproject.toml", "requirements/dev.lock", "requirements/overrides.txt")
    made_of, current = folder / "made-of.txt", "".join((ROOT / s).read_text() for s in sources)
    if made_of.exists() and made_of.read_text() == current:
        return python
    if not python.exists() and run([uv, "venv", "-q", "--python", python_version, folder]):
        return None
    # Newest first: else the resolver prefers the lock's version of another package to it.
    asked = "\n".join(f"{name}{specifier(version)}" for name, version in wanted.items())
    resolve = [uv, "pip", "compile", "-q", "--no-header", "--no-annotate", "--python", python]
    newest = subprocess.run(
        [*resolve, "--no-deps", "-"],
        input=asked,
        env=plain(),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if newest.returncode:
        return None
    pins.write_text(newest.stdout + "".join(CONSTRAINTS.get(w, "") for w in wanted.items()))
    # memwal's own range of them does not count.
    lances = re.findall(r"^(?:pylance|lancedb)==.*\n", newest.stdout, flags=re.MULTILINE)
    fixed.write_text("".join([(ROOT / "requirements" / "overrides.txt").read_text(), *lances]))
    # The output's versions are kept where they fit.
    lock.write_text((ROOT / "requirements" / "dev.lock").read_text())
    rules = ("--constraints", pins, "--overrides", fixed)
    of_memwal = [word for extra in extras for word in ("--extra", extra)]
    for command in (
        [*resolve, *of_memwal, *rules, ROOT / "pyproject.toml", "-o", lock],
        [uv, "pip", "sync", "-q", "--python", python, lock],
        [uv, "pip", "install", "-q", "--python", python, "--no-deps", "-e", ROOT],
    ):
        if run(command):
            return None
    made_of.write_text(current)
    return python


def specifier(version: str) -> str:
    """Return what asks for a version such as ``3.1`` or ``15.0.0b1``."""
    if version == NEWEST:
        return ">=0.dev0"  # Which asks for pre-releases too.
    return f"=={version}" if re.search("[a-z]", version) else f"=={version}.*"


def check(python: Path, tests: tuple[str, ...]) -> bool:
    """Return whether these tests pass; older packages warn of each other."""
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "-m", ""]
    return run([*pytest, *tests]) == 0


def run(command: list[Any]) -> int:
    """Run a program in the repository and return its exit code."""
    return subprocess.run(command, cwd=ROOT, env=plain(), check=False).returncode


def plain() -> dict[str, str]:
    """Return the environment of this process, without what would lead Python elsewhere."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env.pop("VIRTUAL_ENV", None)
    return env


def versions(python: Path) -> dict[str, str]:
    """Return the first columns of the row of an environment."""
    code = "import platform, sys; from importlib.metadata import version\n"
    code += "print(*map(version, sys.argv[1:]), platform.python_version())"
    command = [python, "-c", code, *PACKAGES.values()]
    found = subprocess.check_output(command, text=True, env=plain()).split()
    return dict(zip([*PACKAGES, "Python"], found, strict=True))


def with_row(page: str, row: Mapping[str, str]) -> str:
    """Return the page with a row in its table, in place of that of the same minor versions.

    What the row does not have is kept from that row.
    """
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = [line.strip().strip("|").split("|") for line in table.split("\n") if "|" in line]
    head, *old = ([cell.strip() for cell in line] for line in lines if "---" not in line[0])
    rows = {
        minors(known): known for known in (dict(zip(head, cells, strict=True)) for cells in old)
    }
    rows[minors(row)] = {**rows.get(minors(row), {}), **row}
    columns = [*PACKAGES, "Python", *CHECKS]
    cells = [columns, ["---"] * len(columns)]
    cells += [[rows[key].get(name, "-") for name in columns] for key in sorted(rows)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def minors(row: Mapping[str, str]) -> tuple[tuple[int, ...], ...]:
    """Return the minor versions of the first columns of a row."""
    numbers = [re.findall(r"\d+", row[name])[:2] for name in [*PACKAGES, "Python"]]
    return tuple(tuple(map(int, number)) for number in numbers)


if __name__ == "__main__":
    sys.exit(main())
