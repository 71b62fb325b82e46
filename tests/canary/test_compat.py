"""The table of tested versions, which ``scripts/compat.py`` writes."""

import sys
from pathlib import Path

import pytest
from compat import (
    BEGIN,
    CHECKS,
    END,
    PAGE,
    check,
    checks_of,
    environment,
    run,
    specifier,
    with_row,
)

VERSIONS = {
    "pylance": "14.0.2",
    "LanceDB": "0.40.0",
    "Airflow": "3.1.7",
    "SQLAlchemy": "2.0.58",
    "PySpark": "4.3.0",
    "Python": "3.11.7",
}
OLDEST = {"apache-airflow": "3.1", "sqlalchemy": "2.0", "pyspark": "4.0"}
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def rows(page: str) -> list[list[str]]:
    table = page.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_a_run_replaces_the_row_of_its_minor_versions_and_keeps_other_columns() -> None:
    passed = dict.fromkeys(CHECKS, "passes")
    page = with_row(f"before\n{BEGIN}\n| Airflow |\n{END}\nafter\n", {**VERSIONS, **passed})
    page = with_row(page, {**VERSIONS, "Airflow": "3.2.2", "API of the page": "fails"})
    page = with_row(page, {**VERSIONS, "Airflow": "3.1.10", "catalog": "fails"})
    first, second = rows(page)
    columns = [*VERSIONS, *CHECKS]
    expected = {**VERSIONS, "Airflow": "3.1.10", **passed, "catalog": "fails"}
    assert dict(zip(columns, first, strict=True)) == expected
    assert second[:3] == ["14.0.2", "0.40.0", "3.2.2"]
    assert sorted(second[6:]) == [*["-"] * (len(CHECKS) - 1), "fails"]
    assert (page.partition(BEGIN)[0], page.partition(END)[2]) == ("before\n", "\nafter\n")


def test_a_version_is_a_series_or_one_pre_release() -> None:
    assert [specifier(name) for name in ("3.1", "15.0.0b1")] == ["==3.1.*", "==15.0.0b1"]


def test_every_test_that_counts_exists() -> None:
    root = Path(PAGE).parents[1]
    for tests in CHECKS.values():
        assert all((root / test.partition("::")[0]).exists() for test in tests)


def test_no_check_of_the_table_fails() -> None:
    assert not [row for row in rows(PAGE.read_text()) if "fails" in row]


# Without an index of packages it fails: a version that was not tried is not supported. Each makes
# an environment, which costs a tenth of the processor time of all default tests.
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("wanted", "extras"),
    [
        pytest.param(OLDEST, ("airflow", "spark"), id="oldest"),
        pytest.param({"apache-airflow": "3.2"}, ("airflow",), id="between"),
    ],
)
def test_older_versions_load_dags_and_read(
    wanted: dict[str, str], extras: tuple[str, ...], tmp_path: Path
) -> None:
    python = environment(wanted, PYTHON, extras)
    assert python is not None
    program = Path(__file__).with_name("_older_versions_child.py")
    assert run([python, program, tmp_path]) == 0


# A quarter of an hour; the slow test above makes sure that these versions install and read.
@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_the_oldest_versions() -> None:
    python = environment(OLDEST, PYTHON)
    assert python is not None
    assert [name for name in checks_of(OLDEST) if not check(python, CHECKS[name])] == []
