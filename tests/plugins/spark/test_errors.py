"""The errors of Spark applications keep their types."""

import pytest
from memwal_airflow.spark.application import SparkApplicationError, error_of_line

from memwal.errors import InvalidInputError, StoreAccessError


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("error: StoreAccessError: no rights: renew them\n", StoreAccessError, "no rights: renew"),
        ("  error: InvalidInputError: grace", InvalidInputError, "grace"),
        ("error: Spark failed: no heap; look", SparkApplicationError, "Spark failed: no heap"),
        # Not an error of memwal, whatever it is called.
        ("error: MemWalErrors: x", SparkApplicationError, "MemWalErrors: x"),
        ("error: annotations: x", SparkApplicationError, "annotations: x"),
    ],
)
def test_lines_that_report_an_error(line: str, kind: type[Exception], text: str) -> None:
    error = error_of_line(line)
    assert type(error) is kind
    assert str(error).startswith(text)


@pytest.mark.parametrize("line", ["", "an error: x", "error:", "ERROR: x", "errors: x"])
def test_lines_that_do_not(line: str) -> None:
    assert error_of_line(line) is None
