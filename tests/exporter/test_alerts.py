"""The shipped alert rules: every name in them is one that is exposed, and they fire when they are
meant to."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.metrics.exposed import exposed
from support.metrics.promql import grouped, selected
from support.metrics.promtool import promtool

from memwal.errors import InvalidInputError
from memwal.exporter import RULES, linked_rules, shipped

ROOT = Path(__file__).resolve().parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
GROUPS = yaml.safe_load(shipped(RULES))["groups"]
ALERTS: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
NAMES = [alert["alert"] for alert in ALERTS]

each = pytest.mark.parametrize("alert", ALERTS, ids=NAMES)


class TestStructure:
    @each
    def test_metrics_and_labels_are_exposed(self, alert: dict[str, Any]) -> None:
        found = selected(alert["expr"])
        assert found
        known: set[str] = set()
        for one in found:
            assert one.metric in exposed(), f"nobody exposes {one.metric}"
            labels = exposed()[one.metric]
            assert one.labels <= labels, f"{one.metric} has no {one.labels - labels}"
            known |= labels
        assert grouped(alert["expr"]) <= known

    @each
    def test_what_a_message_shows_is_a_label_of_the_alert(self, alert: dict[str, Any]) -> None:
        shown = set(re.findall(r"\$labels\.([a-z_]+)", str(alert["annotations"])))
        assert shown <= grouped(alert["expr"])

    @each
    def test_the_runbook_exists_and_is_about_this_alert(self, alert: dict[str, Any]) -> None:
        name, severity = alert["alert"], alert["labels"]["severity"]
        assert alert["annotations"]["runbook"] == f"docs/runbooks/{name}.md"
        text = (RUNBOOKS / f"{name}.md").read_text()
        assert text.startswith(f"# {name}\n")
        assert f"\n*{severity}* · " in text

    def test_no_runbook_is_about_an_alert_that_is_gone(self) -> None:
        assert {path.stem for path in RUNBOOKS.glob("Memwal*.md")} == set(NAMES)

    def test_runbooks_can_be_read_elsewhere(self) -> None:
        text = linked_rules("https://docs.example/{alert}.html#look")
        for group in yaml.safe_load(text)["groups"]:
            for rule in group["rules"]:
                told = rule["annotations"].pop("runbook_url")
                assert told == f"https://docs.example/{rule['alert']}.html#look"
        rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
        assert [rule["alert"] for rule in rules] == NAMES

    @pytest.mark.parametrize(
        "url", ["https://docs.example/", "x {alert}", 'x"{alert}', "{alert}\n"]
    )
    def test_an_address_that_leads_nowhere_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidInputError):
            linked_rules(url)


HOUR, DAY = 3600, 86_400


def table(name: str, value: str) -> dict[str, str]:
    """A series of one table."""
    return {f'{name}{{memwal_table="t"}}': value}


def of_policy(**values: int) -> dict[str, str]:
    """What a policy says, and that the table is enabled unless ``enabled`` is 0."""
    found = {
        "late_seconds": HOUR,
        "critical_seconds": 12 * HOUR,
        "catchup_interval_seconds": 900,
        "collection_interval_seconds": HOUR,
        "enabled": 1,
        **values,
    }
    return {
        key: text
        for name, value in found.items()
        for key, text in table(f"memwal_table_{name}", f"{value}x1000").items()
    }


def runs(outcome: str, value: str, job: str = "merge") -> dict[str, str]:
    labels = f'memwal_table="t",memwal_job="{job}",memwal_outcome="{outcome}"'
    return {f"memwal_job_runs_total{{{labels}}}": value}


def success_age(job: str, value: str) -> dict[str, str]:
    return {f'memwal_job_success_age_seconds{{memwal_table="t",memwal_job="{job}"}}': value}


def writer(name: str, value: str) -> dict[str, str]:
    return {f'memwal_writer_{name}{{memwal_table_uri="/t"}}': value}


CASES: dict[str, tuple[dict[str, str], str, set[str]]] = {
    "all is well": (
        {
            **of_policy(),
            **table("memwal_table_backlog_age_seconds", "300x100"),
            **table("memwal_table_status_age_seconds", "50x100"),
            'memwal_table_health{memwal_table="t",memwal_health="run_failed"}': "0x100",
            **table("memwal_table_catchup_age_seconds", "600x100"),
            **table("memwal_table_reclaimable_size_bytes", "1000x100"),
            **table("memwal_region_claims_most", "1x100"),
            **table("memwal_table_skipped_regions", "0x100"),
            **table("memwal_table_unindexable_rows", "0x100"),
            **table("memwal_table_expired_consumers", "0x100"),
            **success_age("gc", "3000x100"),
            **runs("succeeded", "0+1x100"),
            **runs("failed", "0x100"),
            **writer("backpressure_duration_seconds_sum", "0+0.1x100"),
            **writer("refusals_total", "0x100"),
            **writer("flush_failures_total", "0x100"),
        },
        "60m",
        set(),
    ),
    "late": (
        {**of_policy(), **table("memwal_table_backlog_age_seconds", "3500+60x100")},
        "5m",
        {"MemwalBacklogLate"},
    ),
    "not yet late": (
        {**of_policy(), **table("memwal_table_backlog_age_seconds", "3300+60x100")},
        "5m",
        set(),
    ),
    "late by a policy of its own": (
        {**of_policy(late_seconds=60), **table("memwal_table_backlog_age_seconds", "90x100")},
        "5m",
        {"MemwalBacklogLate"},
    ),
    "critical": (
        {**of_policy(), **table("memwal_table_backlog_age_seconds", f"{12 * HOUR + 1}x100")},
        "5m",
        {"MemwalBacklogLate", "MemwalBacklogCritical"},
    ),
    "late, but nobody is to maintain it": (
        {**of_policy(enabled=0), **table("memwal_table_backlog_age_seconds", f"{DAY}x100")},
        "5m",
        set(),
    ),
    **{
        state: (
            {f'memwal_table_health{{memwal_table="t",memwal_health="{state}"}}': "1x100"},
            "6m",
            {alert},
        )
        for state, alert in (
            ("no_heartbeat", "MemwalNoHeartbeat"),
            ("unwatched", "MemwalUnwatched"),
            ("not_started", "MemwalNotStarted"),
            ("run_queued", "MemwalRunQueued"),
            ("run_failed", "MemwalRunFailed"),
            ("sensor_timeout", "MemwalSensorTimeout"),
        )
    },
    "it is only due": (
        {'memwal_table_health{memwal_table="t",memwal_health="due"}': "1x100"},
        "60m",
        set(),
    ),
    "an index is behind": (
        {**of_policy(), **table("memwal_table_catchup_age_seconds", "4501x100")},
        "6m",
        {"MemwalCatchupStalled"},
    ),
    "a region goes from writer to writer": (
        table("memwal_region_claims_most", "5x100"),
        "2m",
        {"MemwalRegionFencedRepeatedly"},
    ),
    "a region is skipped": (
        table("memwal_table_skipped_regions", "1x100"),
        "11m",
        {"MemwalRegionSkipped"},
    ),
    "an index is without some rows": (
        table("memwal_table_unindexable_rows", "1x100"),
        "11m",
        {"MemwalRowsUnindexable"},
    ),
    "a consumer expired": (
        table("memwal_table_expired_consumers", "1x100"),
        "2m",
        {"MemwalConsumerExpired"},
    ),
    "rows of dead writers stay in the log": (
        {**of_policy(), **table("memwal_table_regions_to_recover", "2x100")},
        "16m",
        {"MemwalRowsNotRecovered"},
    ),
    "rows of dead writers are recovered": (
        {**of_policy(), **table("memwal_table_regions_to_recover", "2x10 0x100")},
        "30m",
        set(),
    ),
    "nothing is collected": (
        {
            **of_policy(),
            **success_age("gc", f"{6 * HOUR + 1}x100"),
            **success_age("merge", "1x100"),
            **table("memwal_table_reclaimable_size_bytes", "1000x100"),
        },
        "11m",
        {"MemwalCollectionMissing"},
    ),
    "there is nothing to collect": (
        {
            **of_policy(),
            **success_age("gc", f"{DAY}x100"),
            **table("memwal_table_reclaimable_size_bytes", "0x100"),
        },
        "11m",
        set(),
    ),
    "collections leave it": (
        {
            **of_policy(),
            **success_age("gc", "100x1000"),
            **table("memwal_table_reclaimable_size_bytes", "2000000000+1000000x1000"),
        },
        "400m",
        {"MemwalCollectionBlocked"},
    ),
    "it grows, and is collected": (
        {
            **of_policy(),
            **success_age("gc", "100x1000"),
            **table("memwal_table_reclaimable_size_bytes", "2000000000x200 0+9000000x800"),
        },
        "500m",
        set(),
    ),
    "a job fails": (
        {'memwal_job_attempts{memwal_table="t",memwal_job="index"}': "3x100"},
        "6m",
        {"MemwalJobFailing"},
    ),
    "a policy cannot be read": (
        {
            'memwal_job_attempts{memwal_table="t",memwal_job="policy"}': "1x100",
            'memwal_job_failing_seconds{memwal_table="t",memwal_job="policy"}': "0+60x100",
        },
        "20m",
        {"MemwalJobFailing"},
    ),
    "a job fails for the first time": (
        {
            'memwal_job_attempts{memwal_table="t",memwal_job="gc"}': "1x100",
            'memwal_job_failing_seconds{memwal_table="t",memwal_job="gc"}': "0+60x100",
        },
        "20m",
        set(),
    ),
    "runs fail": (
        {**runs("failed", "0+1x100"), **runs("succeeded", "0x100")},
        "20m",
        {"MemwalJobFailing"},
    ),
    "runs die and fail": (
        {**runs("failed", "0 0 1x100"), **runs("abandoned", "0 1 2x100")},
        "20m",
        {"MemwalJobFailing"},
    ),
    "some runs fail": (
        {**runs("failed", "0+1x100"), **runs("succeeded", "0+1x100")},
        "20m",
        set(),
    ),
    "writers wait": (
        writer("backpressure_duration_seconds_sum", "0+30x100"),
        "30m",
        {"MemwalWriterBackPressured"},
    ),
    "writers refuse": (
        {**writer("refusals_total", "0 0 0 0 3x100")},
        "6m",
        {"MemwalWriterRefuses"},
    ),
    "flushes fail": (
        {
            **writer("flush_failures_total", "0+1x100"),
            **writer("generations_total", "4x100"),
        },
        "20m",
        {"MemwalFlushFailing"},
    ),
    "flushes fail now and then": (
        {
            **writer("flush_failures_total", "0+1x100"),
            **writer("generations_total", "0+1x100"),
        },
        "20m",
        set(),
    ),
    "no catalog": ({"memwal_catalog_up": "0x100"}, "6m", {"MemwalCatalogDown"}),
    "no endpoint": ({"memwal_catalog_up": "_x100"}, "6m", {"MemwalEndpointDown"}),
}


def test_every_alert_is_made_to_fire() -> None:
    fired = set().union(*(expected for _, _, expected in CASES.values()))
    assert fired == set(NAMES)


@pytest.mark.slow
def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    file = tmp_path / RULES
    file.write_text(shipped(RULES))
    done = subprocess.run(
        [promtool(), "check", "rules", "--lint=all", "--lint-fatal", file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_alerts_fire_when_they_are_meant_to(case: str, tmp_path: Path) -> None:
    series, at, expected = CASES[case]
    (tmp_path / RULES).write_text(shipped(RULES))
    given = {"memwal_catalog_up": "1x1000", **series}
    test = {
        "rule_files": [RULES],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": k, "values": v} for k, v in given.items()],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": at,
                        "exp_samples": [
                            {"labels": f'{{alertname="{name}"}}', "value": 1}
                            for name in sorted(expected)
                        ],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [promtool(), "test", "rules", file.name],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
