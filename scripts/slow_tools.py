"""Bring what the slow tests run beside Python: Chromium, strace, a C compiler, Ceph, and promtool.

Usage: ``python scripts/slow_tools.py [--images]``. What is there already stays as it is. All but
the last are installed with Debian's packages, which takes root; promtool is taken out of Debian's
package ``prometheus`` into the folder of the running interpreter, without installing the server.
With ``--images`` it is buildah and debootstrap instead, which the tests of the images run. Where
that cannot be done, it says what to install by hand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

BIN = Path(sys.executable).parent
# A program, and what it comes with.
PACKAGES = {
    "chromium": ["chromium"],
    "strace": ["strace"],
    "cc": ["build-essential"],
    "radosgw": ["ceph-mon", "ceph-osd", "radosgw", "ceph-common"],
}


def main() -> None:
    """Bring what is missing."""
    if sys.argv[1:] == ["--images"]:
        for name in ("buildah", "debootstrap"):
            if shutil.which(name) is None:
                bring(name, partial(install, name))
        return
    for name, packages in PACKAGES.items():
        if shutil.which(name) is None:
            bring(" ".join(packages), partial(install, *packages))
    if shutil.which("promtool") is None and not (BIN / "promtool").exists():
        bring("promtool (Debian's package prometheus)", unpack_promtool)


def bring(name: str, step: Callable[[], None]) -> None:
    """Run a step, or say by hand what it could not do."""
    try:
        step()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"The slow tests need {name}, which could not be installed here: {error}")


def install(*packages: str) -> None:
    """Install packages of the system."""
    apt("update")
    apt("install", "-y", "--no-install-recommends", *packages)


def unpack_promtool() -> None:
    """Take the one program out of the package."""
    apt("update")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "-qq", "download", "prometheus"], cwd=folder, check=True)
        (package,) = Path(folder).glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "-x", package.name, "content"], cwd=folder, check=True)
        shutil.copy2(Path(folder) / "content/usr/bin/promtool", BIN / "promtool")


def apt(*arguments: str) -> None:
    """Run apt-get quietly, and never ask."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "-qq", *arguments], env=environment, check=True)


if __name__ == "__main__":
    main()
