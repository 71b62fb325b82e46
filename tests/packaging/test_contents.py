"""What a wheel and an sdist hold, as the build would choose it from this checkout."""

import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from support.docs.scripts import script

import memwal

ROOT = Path(__file__).resolve().parents[2]
BUILT = re.compile(r"memwal_airflow/web/static/")
"""Made by Node, and not there in every checkout."""


@pytest.fixture(scope="module")
def wheel() -> set[str]:
    files = WheelBuilder(str(ROOT)).recurse_included_files()
    return {file.distribution_path for file in files if not BUILT.search(file.distribution_path)}


@pytest.fixture(scope="module")
def sdist() -> set[str]:
    return {file.distribution_path for file in SdistBuilder(str(ROOT)).recurse_included_files()}


def committed(*folders: str) -> set[str]:
    """Files that Git knows, or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in found.stdout.splitlines() if (ROOT / name).is_file()}


def test_a_wheel_has_the_packages_dags_and_applications_and_nothing_else(wheel: set[str]) -> None:
    expected = committed("memwal")
    expected |= {
        name.removeprefix("plugins/")
        for name in committed("plugins/memwal_airflow")
        if not name.startswith("plugins/memwal_airflow/ui/")
    }
    expected |= {f"memwal/{name}" for name in committed("spark_apps")}
    expected |= {f"memwal_airflow/{name}" for name in committed("dags")}
    assert wheel == expected


def test_an_sdist_has_what_a_wheel_is_built_of(sdist: set[str], wheel: set[str]) -> None:
    sources = committed("memwal", "plugins/memwal_airflow", "spark_apps", "dags", "scripts")
    sources = {name for name in sources if "/ui/" not in name}
    assert sources | {"pyproject.toml", "README.md", "LICENSE"} <= sdist
    unwanted = re.compile(r"(^tests/)|(^bench/)|node_modules|__pycache__|\.db$|(^\.)")
    assert [name for name in sdist if unwanted.search(name) and name != ".gitignore"] == []


def test_the_page_goes_along_though_git_ignores_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert settings["artifacts"] == ["plugins/memwal_airflow/web/static"]


class TestPage:
    @pytest.fixture
    def initialize(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[[str, str], None]:
        """The hook for a target and a version, in a folder without the page."""
        hook = script("build_hook")
        monkeypatch.delenv(hook.RELEASE, raising=False)

        def initialize(target: str, version: str) -> None:
            hook.LookForPage(str(tmp_path), {}, None, None, str(tmp_path), target).initialize(
                version, {}
            )

        return initialize

    def test_both_targets_together_warn_once(
        self, initialize: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        initialize("sdist", "standard")
        initialize("wheel", "standard")
        assert capsys.readouterr().err.count("make ui") == 1
        initialize("wheel", "editable")
        assert capsys.readouterr().err == ""

    def test_a_release_is_refused(
        self,
        initialize: Callable[[str, str], None],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        hook = script("build_hook")
        monkeypatch.setenv(hook.RELEASE, "1")
        for target in ("sdist", "wheel"):
            with pytest.raises(SystemExit, match="make ui"):
                initialize(target, "standard")
        initialize("wheel", "editable")
        page = tmp_path / hook.PAGE
        page.parent.mkdir(parents=True)
        page.touch()
        initialize("wheel", "standard")
        assert capsys.readouterr().err == ""


def test_the_version_stands_in_one_place() -> None:
    metadata = ProjectMetadata(str(ROOT), PluginManager())
    assert metadata.version == memwal.__version__
    numbers = re.escape(memwal.__version__)
    found = subprocess.run(
        ["git", "grep", "-lE", rf"^(version|__version__).*= \"{numbers}\"", "--", "*.py", "*.toml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.split() in ([], ["memwal/version.py"])
