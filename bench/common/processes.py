"""Start the programs of ``children`` as processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_BENCH = str(Path(__file__).resolve().parents[1])
_NOTE_CHARACTERS = 2_000


def child_command(module: str, task: Mapping[str, Any]) -> list[str]:
    """Return the command that runs a module of ``children`` with its task as argument."""
    return [sys.executable, "-m", f"children.{module}", json.dumps(task)]


def child_environment() -> dict[str, str]:
    """Return the environment of this process, with the packages of ``bench`` on its path."""
    folders = [_BENCH, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}


def run_child(module: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """Run a child to its end and return the JSON object of its last line.

    Raises
    ------
    subprocess.CalledProcessError
        The child failed. ``stderr`` is what it wrote there; a note shows the end of it.
    """
    try:
        child = subprocess.run(
            child_command(module, task),
            check=True,
            capture_output=True,
            text=True,
            env=child_environment(),
        )
    except subprocess.CalledProcessError as failure:
        failure.add_note(failure.stderr[-_NOTE_CHARACTERS:])
        raise
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return result


def merge_copy(uri: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """Run the child ``merging`` on a copy of a table, which is deleted afterwards."""
    copy = f"{uri}-copy"
    shutil.copytree(uri, copy)
    try:
        return run_child("merging", {**task, "uri": copy})
    finally:
        shutil.rmtree(copy)
        shutil.rmtree(f"{copy}__quarantine.lance", ignore_errors=True)
