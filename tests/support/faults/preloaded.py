"""Libraries that are loaded into a process before all others, to replace calls of the C library."""

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path


def preload(sources: Sequence[Path]) -> dict[str, str]:
    """What has to be in the environment of a process, so that these libraries are loaded."""
    return {"LD_PRELOAD": ":".join(_built(source) for source in sources)} if sources else {}


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes with this process."""
    return tempfile.TemporaryDirectory(prefix="memwal-preloaded-")


@functools.cache
def _built(source: Path) -> str:
    """Compile a library, once a process."""
    compiler = shutil.which("cc")
    assert compiler is not None, "There is no C compiler; scripts/slow_tools.py brings one"
    built = f"{_folder().name}/{source.stem}.so"
    arguments = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", built]
    subprocess.run([compiler, *arguments, str(source), "-ldl"], check=True)
    return built
