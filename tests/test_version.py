"""Another project's package ``memwal`` in the same folder."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import memwal
from memwal.version import namesake

PACKAGE = Path(memwal.__file__).parent


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as pip leaves it: the package, its metadata and those of others."""
    shutil.copytree(PACKAGE, tmp_path / "memwal", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("lance_memwal-0.1.0.dist-info", "memwal_other-1.0.dist-info", "memwal-notes"):
        (tmp_path / name).mkdir()
    return tmp_path


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the Python of the tests with the packages of this folder first."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={"PYTHONPATH": str(site), "PATH": ""},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def test_memwal_alone_is_imported_without_a_word(site: Path) -> None:
    assert namesake(str(site)) is None
    done = run(site, "-W", "error", "-c", "import memwal; print(memwal.__file__)")
    assert (done.stdout.strip(), done.stderr) == (str(site / "memwal" / "__init__.py"), "")


def test_another_project_in_the_folder_is_named(site: Path) -> None:
    (site / "memwal-0.2.1.dist-info").mkdir()
    told = namesake(str(site))
    assert told is not None
    assert "memwal 0.2.1" in told
    assert "pip uninstall memwal lance-memwal" in told
    # Ours came last, so it works; the other one does not.
    done = run(site, "-c", "import memwal; memwal.errors")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(told) == 1
    # The program warns in the same way.
    done = run(site, "-m", "memwal", "--version")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(told) == 1


def test_the_program_refuses_to_run_on_the_package_of_another_project(site: Path) -> None:
    (site / "memwal-0.2.1.dist-info").mkdir()
    (site / "memwal" / "__init__.py").write_text("__all__ = ['Client']\n")
    done = run(site, "-m", "memwal", "--version")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {namesake(str(site))}\n"


def test_the_program_says_that_another_project_took_a_file_along(site: Path) -> None:
    (site / "memwal" / "__init__.py").unlink()
    # Without the packages of the tests, which may lead to a whole memwal.
    done = run(site, "-S", "-m", "memwal", "--version")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "lance-memwal" in done.stderr


def test_a_package_in_a_zip_file_has_no_neighbours(site: Path) -> None:
    archive = shutil.make_archive(str(site / "all"), "zip", site, "memwal")
    done = run(Path(archive), "-W", "error", "-c", "import memwal; print(memwal.__version__)")
    assert (done.stdout.strip(), done.stderr) == (memwal.__version__, "")
