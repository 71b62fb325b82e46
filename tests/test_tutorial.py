"""The tutorial keeps its word: a shell runs its commands, one block after another."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
INSTALL, *BLOCKS = re.findall(r"```bash\n(.*?)```", TUTORIAL, flags=re.DOTALL)

HARNESS = """
set -eu
finish() {{
    kill ${{AIRFLOW:-}} && wait $AIRFLOW || true
}} 2> /dev/null
trap finish EXIT
{blocks}
trap - EXIT
"""


def test_what_is_installed_can_be_made() -> None:
    """What runs the tests was made this way; here it is only looked whether it still is."""
    make, activate = INSTALL.splitlines()
    assert activate == "source .venv/bin/activate"
    command = make.split()
    assert command[0] == "make"
    subprocess.run(["make", "-n", *command[1:]], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_command_runs(tmp_path: Path) -> None:
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "MEMWAL", "LANCE_LOG"))
    }
    env["HOME"] = str(tmp_path)
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    script = HARNESS.format(blocks="\necho ======\n".join(BLOCKS))
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=ROOT,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = shell.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        shell.send_signal(signal.SIGTERM)
        log = (tmp_path / "memwal-tutorial" / "airflow.log").read_text()
        pytest.fail(f"no merge in time:\n{log}\n{shell.communicate()}")
    assert shell.returncode == 0, output + errors
    _, before, registered, airflow, after, _ = output.split("======\n")
    assert "400 paid for LanceDB\n0 paid in the base table\n" in before
    assert re.search(r"\btotal[\s│]+4\b", before)
    assert re.search(r"\bmerge[\s│]+now\b", registered)
    assert re.search(r"http://127\.0\.0\.1:\d+/plugin/memwal", airflow)
    assert "admin" in airflow
    assert "400 paid in the base table\n" in after
    assert re.search(r"\btotal[\s│]+0\b", after)
    assert not (tmp_path / "memwal-tutorial").exists()
