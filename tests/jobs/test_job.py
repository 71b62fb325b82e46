"""Results that were written down are read back."""

from __future__ import annotations

import json

import pytest

from memwal.errors import InvalidInputError
from memwal.jobs.job import JobResult, SkippedRegion


def test_json_and_back() -> None:
    result = JobResult(
        job="merge",
        table="/data/t.lance",
        version=7,
        tasks=2,
        commits=3,
        seconds=0.5,
        metrics={"generations": 4},
        warnings=("left out",),
        skipped_regions=(SkippedRegion(region_id="r", generation=2, reason="gone"),),
    )
    assert JobResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_what_it_does_not_know_is_ignored() -> None:
    found = JobResult.from_dict({"job": "gc", "table": "t", "version": 1, "decisions": []})
    assert found == JobResult(job="gc", table="t", version=1)


@pytest.mark.parametrize("values", [{}, {"job": "gc"}])
def test_what_is_no_result(values: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        JobResult.from_dict(values)
