"""The table of tested versions, which ``scripts/compat.py`` writes."""

from __future__ import annotations

from pathlib import Path

from compat import BEGIN, CHECKS, END, PAGE, with_row

VERSIONS = {"Airflow": "3.1.7", "SQLAlchemy": "2.0.58", "PySpark": "4.3.0", "Python": "3.11.7"}


def rows(page: str) -> list[list[str]]:
    table = page.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_a_run_replaces_the_row_of_its_minor_versions_and_keeps_other_columns() -> None:
    passed = dict.fromkeys(CHECKS, "passes")
    page = with_row(f"before\n{BEGIN}\n{END}\nafter\n", {**VERSIONS, **passed})
    page = with_row(page, {**VERSIONS, "Airflow": "3.2.2", "page": "fails"})
    page = with_row(page, {**VERSIONS, "Airflow": "3.1.10", "catalog": "fails"})
    first, second = rows(page)
    assert first[:4] == ["3.1.10", *list(VERSIONS.values())[1:]]
    assert dict(zip(CHECKS, first[4:], strict=True)) == {**passed, "catalog": "fails"}
    assert second[:1] == ["3.2.2"]
    assert sorted(second[4:]) == [*["-"] * (len(CHECKS) - 1), "fails"]
    assert (page.partition(BEGIN)[0], page.partition(END)[2]) == ("before\n", "\nafter\n")


def test_every_test_that_counts_exists() -> None:
    root = Path(PAGE).parents[1]
    for tests in CHECKS.values():
        assert all((root / test.partition("::")[0]).exists() for test in tests)


def test_no_check_of_the_table_fails() -> None:
    assert not [row for row in rows(PAGE.read_text()) if "fails" in row]
