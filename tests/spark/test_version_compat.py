"""What differs between versions of Spark."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import memwal.spark
from memwal.cli.commands.app import app
from memwal.errors import InvalidInputError
from memwal.spark.data_source import MemWalDataSource
from memwal.spark.version_compat import DATA_SOURCES, FEATURES, ROWS_WITHOUT_COLUMNS
from memwal.util import versions

ROOT = Path(__file__).parents[2]
# What differs between versions of Spark, and what asks for one.
DIFFERS = re.compile(
    r"to_arrow_schema|_on_exit|_cleanup_ml|util\.versions|LooseVersion|pyspark\.(__)?version"
)


@pytest.fixture
def older_spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Pretend that Spark 3.5 is installed, or what a test puts in its place."""
    installed = versions.version
    found = {"pyspark": "3.5.9"}
    monkeypatch.setattr(versions, "version", lambda name: found.get(name) or installed(name))
    versions._installed.cache_clear()
    yield found
    versions._installed.cache_clear()


def test_one_module_depends_on_the_version_of_spark() -> None:
    modules = [*(ROOT / "memwal" / "spark").rglob("*.py"), *(ROOT / "spark_apps").rglob("*.py")]
    found = {path.name for path in modules if DIFFERS.search(path.read_text())}
    assert found == {"version_compat.py"}


def test_the_page_has_a_row_for_what_an_older_spark_lacks() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    for feature in FEATURES:
        assert f"| {feature.name} | Spark {feature.since} | {feature.without} |" in page


@pytest.mark.usefixtures("older_spark")
def test_what_an_older_spark_lacks_is_refused_and_listed() -> None:
    with pytest.raises(InvalidInputError, match=DATA_SOURCES.name):
        _ = memwal.spark.register
    done = CliRunner().invoke(app, ["doctor", "--versions", "--json"])
    assert done.exit_code == 0, done.output
    states = {check["name"]: check["state"] for check in json.loads(done.stdout)["checks"]}
    assert states.items() >= {"pyspark": "ok", DATA_SOURCES.name: "warning"}.items()


def test_an_older_spark_would_lose_rows_without_columns(
    older_spark: dict[str, str], table: memwal.Table
) -> None:
    older_spark["pyspark"] = "4.0.5"
    source = MemWalDataSource({"path": table.uri, "columns": ""})
    with pytest.raises(InvalidInputError, match=ROWS_WITHOUT_COLUMNS.name):
        source.reader(source.schema())
