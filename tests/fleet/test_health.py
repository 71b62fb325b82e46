from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from memwal.catalog import BacklogSample, Policy
from memwal.catalog.failures import REGION_JOB, JobError
from memwal.fleet.health import Health, backlog_age, health

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
POLICY = Policy(late_seconds=600, critical_seconds=3600)
SAMPLE = BacklogSample(
    table="a",
    at=NOW - timedelta(seconds=30),
    generations=2,
    rows=5,
    bytes=9,
    wal_entries=0,
    oldest_seconds=60.0,
)
ERROR = JobError(job="gc", reason="StoreAccessError:\n  no", at=NOW, since=NOW)
REGION = JobError(job=REGION_JOB, reason="2 regions are skipped: r1", at=NOW, since=NOW)


@pytest.mark.parametrize(
    ("sample", "age"),
    [
        (SAMPLE, 90.0),
        (None, None),
        (replace(SAMPLE, generations=0), None),
        (replace(SAMPLE, oldest_seconds=None), None),
        # A clock that is behind does not make it younger.
        (replace(SAMPLE, at=NOW + timedelta(seconds=5)), 60.0),
    ],
)
def test_a_backlog_ages_on(sample: BacklogSample | None, age: float | None) -> None:
    assert backlog_age(sample, NOW) == age


@pytest.mark.parametrize(
    ("sample", "options", "expected", "named"),
    [
        (SAMPLE, {}, Health.OK, []),
        (SAMPLE, {"enabled": False, "errors": [REGION]}, Health.OFF, [[]]),
        (None, {}, Health.UNKNOWN, [[]]),
        (
            replace(SAMPLE, generations=0, at=NOW - timedelta(hours=2)),
            {},
            Health.UNKNOWN,
            [["2 h"]],
        ),
        (replace(SAMPLE, oldest_seconds=570.0), {}, Health.LATE, [["10 min", "10 min"]]),
        (
            replace(SAMPLE, oldest_seconds=3569.0),
            {"errors": [REGION]},
            Health.FAILING,
            [["2", "r1"], ["60 min", "10 min"]],
        ),
        (
            replace(SAMPLE, oldest_seconds=3570.0),
            {"errors": [REGION, ERROR]},
            Health.CRITICAL,
            [["60 min", "60 min"], ["2", "r1"], ["gc", "StoreAccessError: no"]],
        ),
        (None, {"errors": [ERROR]}, Health.FAILING, [["gc"], []]),
    ],
)
def test_health(
    sample: BacklogSample | None,
    options: dict[str, object],
    expected: Health,
    named: list[list[str]],
) -> None:
    """Each reason names its figures, in this order."""
    found, reasons = health(POLICY, sample, now=NOW, **options)
    assert found is expected
    for reason, parts in zip(reasons, named, strict=True):
        assert re.search(".*".join(map(re.escape, parts)), reason)


@pytest.mark.parametrize(("length", "is_cut"), [(300, False), (301, True)])
def test_a_long_reason_is_cut(length: int, is_cut: bool) -> None:
    begins = replace(ERROR, reason="").summary
    error = replace(ERROR, reason="x" * (length - len(begins)))
    _, (why,) = health(POLICY, SAMPLE, now=NOW, errors=[error])
    assert (why == error.summary) is not is_cut
    assert why.startswith(error.summary[:300])
