"""Data Docs show columns and values of whoever made the table: as text, and never as a page."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from memwal.errors import InvalidInputError
from memwal.quality.data_docs import RunResult, build_data_docs
from memwal.quality.expectations import read_suite

pytestmark = pytest.mark.slow

SCRIPT = "<script>alert(1)</script>"
IMAGE = "\"'><img src=x onerror=alert(1)>"
TEMPLATE = "{{ 7 * 191 }}{% for n in range(3) %}Q{% endfor %}$value_set ${HOME}"


def test_texts_are_no_html(tmp_path: Path) -> None:
    suite = read_suite(
        [
            {
                "type": "expect_column_values_to_be_in_set",
                "kwargs": {"column": SCRIPT, "value_set": [SCRIPT, IMAGE, TEMPLATE]},
                "meta": {"notes": {"format": "markdown", "content": [SCRIPT, IMAGE]}},
            },
            {
                "type": "expect_column_values_to_match_regex",
                "kwargs": {"column": TEMPLATE, "regex": IMAGE},
            },
            {"type": "expect_column_to_exist", "kwargs": {"column": IMAGE}},
        ]
    )
    quality = {
        "rows": 10,
        "expectations": [
            {
                "type": one.type,
                "failed": 1,
                "examples": [SCRIPT, IMAGE, {"k": TEMPLATE}],
                "success": False,
                "error": f"cannot evaluate {SCRIPT}" if number == 1 else None,
            }
            for number, one in enumerate(suite)
        ],
    }
    found = RunResult(at=datetime.now(UTC), run="merge 1", quality=quality)

    build_data_docs("t", suite, [found], tmp_path)

    pages = [page.read_text() for page in tmp_path.rglob("*.html")]
    assert any("alert(1)" in page for page in pages)
    assert any("cannot evaluate" in page for page in pages)
    for page in pages:
        assert SCRIPT not in page
        assert "<img src=x" not in page
        assert "1337" not in page
        assert str(Path.home()) not in page


def test_a_suite_that_great_expectations_does_not_take(tmp_path: Path) -> None:
    """Bounds of a time that is no time are told of, as those that it cannot compare with."""
    suite = read_suite(
        [
            {
                "type": "expect_column_values_to_be_between",
                "kwargs": {"column": "c", "min_value": "soon"},
            }
        ]
    )
    with pytest.raises(InvalidInputError, match="expect_column_values_to_be_between"):
        build_data_docs("t", suite, [], tmp_path)
