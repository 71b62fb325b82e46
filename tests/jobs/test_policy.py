import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.errors import InvalidInputError
from memwal.jobs.options import GcOptions, JobOptions, MergeOptions, options_of
from memwal.jobs.policy import Policy


def test_defaults_are_the_documented_ones() -> None:
    policy = Policy()
    assert policy.merge_at_generations == 4
    assert policy.merge_commit_bytes == 1 << 30
    assert policy.gc_grace_seconds == 600
    assert policy.gc_retention_seconds == 3600


@settings(max_examples=10)
@given(
    st.builds(
        Policy,
        merge_at_generations=st.integers(1, 1000),
        merge_at_age_seconds=st.floats(0, 1e6),
        merge_commit_bytes=st.integers(1 << 20, 1 << 50),
        schedule=st.one_of(st.none(), st.just("*/5 * * * *"), st.floats(1, 1e6)),
        poll_seconds=st.floats(1, 100),
        gc_grace_seconds=st.floats(120, 1e6),
        merge_at_bytes=st.one_of(st.none(), st.integers(1, 1 << 50)),
        merge_run_bytes=st.one_of(st.none(), st.integers(1 << 20, 1 << 50)),
        quiet_hours=st.sampled_from([(), ("22:00-06:00 Europe/Berlin", "12:00-13:30 UTC")]),
        gc_version_retention_seconds=st.one_of(st.none(), st.floats(0, 1e9)),
        tags=st.lists(st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True)).map(tuple),
        priority=st.integers(1, 100),
    )
)
def test_json_round_trip(policy: Policy) -> None:
    assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy
    assert Policy.from_dict(json.loads(json.dumps(policy.changes()))) == policy


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("merge_at_generations", 0),
        ("merge_at_generations", 2.5),
        ("merge_at_generations", True),
        ("merge_commit_bytes", 1),
        ("merge_at_age_seconds", -1),
        ("merge_at_age_seconds", "5"),
        ("merge_at_age_seconds", float("nan")),
        ("poll_seconds", 0.5),
        ("late_seconds", 0),
        ("critical_seconds", None),
        ("sensor_groups", 0),
        ("pool", ""),
        ("pool", 5),
        ("spark_session", " "),
        ("retries", -1),
        ("late_seconds", float("inf")),
        ("gc_grace_seconds", 119),
        ("gc_retention_seconds", None),
        ("merge_at_bytes", 0),
        ("merge_run_bytes", 5),
        ("index_at_generations", None),
        ("index_at_rows", 0),
        ("compact_min_fragments", 1),
        ("snapshot_at_age_seconds", 0),
        ("run_retention_seconds", -1),
        ("gc_version_retention_seconds", -1),
        ("quiet_hours", "22:00-06:00 UTC"),
        ("quiet_hours", ("22-06 UTC",)),
        ("quiet_hours", ("22:00-24:00 UTC",)),
        ("quiet_hours", ("22:00-22:00 UTC",)),
        ("quiet_hours", ("22:00-06:00",)),
        ("quiet_hours", ("22:00-06:00 Mars/Crater",)),
        ("quiet_hours", ("22:00-06:00 Europe",)),
        ("quiet_hours", ("22:00-06:00 ../etc",)),
        ("quiet_hours", (5,)),
        ("schedule", "every minute"),
        ("schedule", "* * * *"),
        ("schedule", "@reboot"),
        ("schedule", 0),
        ("schedule", True),
        ("tags", ["a"]),
        ("tags", ("a b",)),
        ("tags", (1,)),
        ("priority", 101),
    ],
)
def test_wrong_values_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=key):
        Policy(**{key: value})


@pytest.mark.parametrize(
    "schedule", [None, 60, 0.5 * 60, "*/5 * * * *", "0 2 * * MON-FRI", "@hourly"]
)
def test_schedules_that_are_taken(schedule: Any) -> None:
    assert Policy(schedule=schedule).schedule == schedule


@pytest.mark.parametrize(
    ("job", "options_class", "options_under"),
    [
        ("merge", MergeOptions, Policy.merge_options),
        ("gc", GcOptions, Policy.gc_options),
    ],
)
def test_every_key_that_sets_an_option_reaches_it(
    job: str, options_class: type[JobOptions], options_under: Callable[[Policy], JobOptions]
) -> None:
    names = [name for name in options_of(options_class) if f"{job}_{name}" in options_of(Policy)]
    values = {name: 5_000_000 + turn for turn, name in enumerate(names)}
    policy = Policy(**{f"{job}_{name}": value for name, value in values.items()})
    assert len(values) >= 2
    assert {name: getattr(options_under(policy), name) for name in values} == values


def test_unknown_keys_are_all_named() -> None:
    with pytest.raises(InvalidInputError, match=r"merge_at\b.*zeal"):
        Policy.from_dict({"merge_at": 1, "zeal": 2, "priority": 3})
