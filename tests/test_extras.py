"""What is said when a part of memwal is asked for that is not installed."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest
from support.processes import run_python

from memwal.errors import MissingExtraError
from memwal.util.optional_deps import how_to_install, requires_extra
from memwal.version import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("typer", "rich", "sqlalchemy", "alembic", "pyspark", "great_expectations",
                    "prometheus_client", "datafusion", "boto3", "psycopg", "psycopg2"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""

ASKED = {
    "catalog": "from memwal.catalog import Catalog",
    "spark": "from memwal.spark.session import spark_session; spark_session('app')",
    "quality": "from memwal.quality.evaluate import load_gx; load_gx()",
    "metrics": "from memwal.exporter.server import MetricsEndpoint; MetricsEndpoint(None)",
    "aws": (
        "from memwal.storage.open import open_store; "
        "open_store('s3://bucket/t', {'aws_profile': 'lake'})"
    ),
    "expressions": (
        "import pyarrow as pa; from memwal.region.sql_transform import Expression; "
        "Expression('col0', pa.int64(), 1).value_type([pa.int64()])"
    ),
}
"""Extra to code that needs it."""


METADATA = """\
Metadata-Version: 2.4
Name: lance-memwal
Version: 9
Requires-Dist: numpy>=2
Requires-Dist: sqlalchemy<2.2,>=2.1; extra == 'catalog'
Requires-Dist: pyspark[connect]<4.4,>=4.0; (python_version > "3") and extra == "spark"
Requires-Dist: alembic>=1.18; extra == 'catalog'
Requires-Dist: wrong; extra == 'catalogs'
Requires-Dist: numpy>=2; extra == 'other'
Requires-Dist: no-such_package>=2; extra == 'other'
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the metadata of an installed memwal, before all others on the path."""
    info = tmp_path / "lance_memwal-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "INSTALLER").write_text("pip\n")
    monkeypatch.syspath_prepend(tmp_path)
    return info


def test_each_part_names_its_extra() -> None:
    code = f"""{ABSENT}
import json
from memwal.errors import MissingExtraError
said = {{}}
for extra, asked in {ASKED!r}.items():
    try:
        exec(asked, {{}})
    except MissingExtraError as error:
        said[extra] = str(error)
print(json.dumps(said))
"""
    said = json.loads(run_python(code).stdout)
    assert list(said) == list(ASKED)
    assert set(ASKED) <= set(EXTRAS)
    for extra, message in said.items():
        assert how_to_install(extra) in message


def test_the_program_names_its_extra() -> None:
    done = run_python(f"{ABSENT}\nfrom memwal.__main__ import main\nmain()", status=2)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert how_to_install("cli") in done.stderr


def test_a_catalog_names_the_extra_of_its_driver() -> None:
    code = """
import json, sys
sys.modules["psycopg"] = sys.modules["psycopg2"] = None
from memwal.catalog import Catalog
from memwal.errors import MissingExtraError
said = []
for url in ("postgresql+psycopg://u:hunter2@h/d", "postgresql://u:hunter2@h"):
    try:
        Catalog(url)
    except MissingExtraError as error:
        said.append(str(error))
print(json.dumps(said))
"""
    said = json.loads(run_python(code).stdout)
    assert len(said) == 2
    for message in said:
        assert how_to_install("postgres") in message
        assert "hunter2" not in message


@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("catalog", ["sqlalchemy<2.2,>=2.1", "alembic>=1.18"]),
        ("spark", ["pyspark[connect]<4.4,>=4.0"]),
        ("other", ["no-such_package>=2"]),
    ],
)
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_an_extra_is_installed_by_its_packages(
    installed: Path, installer: str, extra: str, packages: list[str]
) -> None:
    (installed / "INSTALLER").write_text(f"{installer}\n")
    command = shlex.split(how_to_install(extra).rpartition(": ")[2])
    assert command == [*(["uv"] if installer == "uv" else []), "pip", "install", *packages]


@pytest.mark.parametrize("name", [DISTRIBUTION, "no-such-distribution"])
def test_where_the_packages_of_an_extra_are_not_known_there_is_no_command(
    installed: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("memwal.util.optional_deps.DISTRIBUTION", name)
    told = how_to_install("unknown")
    assert ("pip" in told, name in told, "unknown" in told) == (False, True, True)


def test_a_mistake_of_ours_is_not_told_as_an_extra() -> None:
    with pytest.raises(ModuleNotFoundError), requires_extra("catalog"):
        import memwal.no_such_module  # noqa: F401
    with pytest.raises(MissingExtraError, match="no_such_package"), requires_extra("cli"):
        import no_such_package  # noqa: F401
