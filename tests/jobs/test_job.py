"""Results that were written down are read back."""

import json
import time

import pytest
from support.data.tables import rows

import memwal
from memwal.errors import InvalidInputError
from memwal.jobs.job import JobResult, SkippedRegion, sentence, summary
from memwal.jobs.status import TableStatus

STATUS = TableStatus(
    uri="/data/t.lance", version=7, regions=(), indexes=(), snapshot_age_seconds=None
)


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


def test_a_result_has_the_seconds_of_its_own_run(table: memwal.Table) -> None:
    table.upsert(rows({1: 1}))
    for job in (
        *(table.merge, table.build_indexes, table.build_snapshot, table.compact),
        *(table.collect_garbage, table.checkpoint, table.verify),
    ):
        began = time.monotonic()
        seconds = job().seconds
        assert 0 <= seconds <= time.monotonic() - began, job


@pytest.mark.parametrize("values", [{}, {"job": "gc"}])
def test_what_is_no_result(values: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        JobResult.from_dict(values)


def test_a_summary_has_every_figure_in_a_line_of_its_own() -> None:
    result = JobResult(
        job="merge",
        table="/data/t.lance",
        version=7,
        commits=2,
        metrics={"generations": 41, "rows_upserted": 123_456, "bytes_read": 5 << 20},
    )
    first, *lines = summary(result, phases={"start": 4.5}, backlog=STATUS).splitlines()
    assert first == sentence(result)
    figures = {line.rsplit("  ", 1)[0].strip(): line.rsplit("  ", 1)[1] for line in lines}
    assert figures == {
        "generations": "41",
        "rows upserted": "123,456",
        "bytes read": "5.0 MiB",
        "commits": "2",
        "tasks": "0",
        "seconds: start": "4.5",
        "seconds: merge": "0.0",
        "backlog left": "0 generations, 0 rows, 0 B",
    }
