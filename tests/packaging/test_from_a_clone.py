"""What a reader does first, with pip and uv, in a clone: nothing was built and nothing installed.

It runs the whole pages docs/install.md and docs/quickstart.md, and what README.md says to install.
"""

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.docs.page_runs import PageRun
from support.docs.pages import ROOT, RUN, Block, read_page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
# Not the one of an environment: another that it makes would find what is installed there.
PYTHON = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")


def clone(folder: Path) -> None:
    """Copy what Git has, or would take, as it is now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, found.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


@pytest.mark.parametrize("name", ["docs/install.md", "docs/quickstart.md", "README.md"])
def test_every_command_of_a_page_runs(name: str, tmp_path: Path) -> None:
    page = read_page(ROOT / name)
    blocks = [block for block in page.blocks if block.language in RUN]
    if name == "README.md":
        blocks = [block for block in blocks if "tests/packaging" in str(block.values("run by"))]
        made = f"{PYTHON} -m venv ~/env; source ~/env/bin/activate"
        blocks.insert(0, Block(name, 0, "bash", made))
    assert len(blocks) > 1
    with contextlib.closing(PageRun(tmp_path / "home", processes=True, python=PYTHON)) as run:
        clone(run.folder / "memwal")
        # What is imported is compiled then; pip would compile all of it.
        run.run_block(Block(name, 0, "bash", "cd memwal; export PIP_NO_COMPILE=1"))
        for block in blocks:
            run.run_block(block)
