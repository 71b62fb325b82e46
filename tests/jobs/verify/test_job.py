"""How a verification is divided, run and told."""

import json
import re
from uuid import uuid4

import findings
import pytest
from support.data.merging import elsewhere
from support.data.tables import rows

from memwal.errors import StoreUnavailableError
from memwal.jobs.options import VerifyOptions
from memwal.jobs.verify import CODES, Finding, VerifyReport, verify
from memwal.jobs.verify import job as verify_regions
from memwal.jobs.verify.findings import worst_first


def test_tasks_can_be_sent_to_other_machines(make_divided):
    spoiled, _ = make_divided
    for path in spoiled.root.glob("_mem_wal/*/*_gen_1/bloom_filter.bin"):
        path.unlink()
    report = verify(spoiled.table.location, VerifyOptions(max_tasks=2, run=elsewhere))
    assert (report.tasks, report.regions, report.version) == (3, 2, spoiled.table.base().version)
    assert [finding.code for finding in report.findings] == ["bloom-missing"] * 2
    assert report.warnings == 2
    assert not report.clean
    assert json.loads(json.dumps(report.to_dict()))["warnings"] == 2


def test_what_is_found_once_does_not_count(spoiled, monkeypatch):
    looks = []

    def check_hint(store, region_id, *, now):
        looks.append(region_id)
        return [Finding("hint-late", f"hint ({len(looks)})", "moves on", region=region_id)]

    monkeypatch.setattr(verify_regions, "check_hint", check_hint)
    assert spoiled.codes() == []
    assert len(looks) == 2


def test_a_store_that_fails_is_no_finding(faults, make_table):
    table = make_table()
    table.upsert(rows({1: 1}))

    def get(key):
        raise StoreUnavailableError("no answer")

    faults.of(table.location).get = get
    with pytest.raises(StoreUnavailableError):
        verify(table.location)


def test_the_worst_comes_first():
    codes = ["bloom-missing", "region-empty", "log-gap", "base-key-repeated", "log-gap"]
    findings = worst_first(Finding(code, "o", "t") for code in codes)
    assert [f.code for f in findings] == [
        "base-key-repeated",
        "log-gap",
        "bloom-missing",
        "region-empty",
    ]
    assert VerifyReport(table="t", version=1, findings=findings[3:]).clean


def test_findings_of_a_region_stand_together():
    first, second = sorted((uuid4(), uuid4()), key=str)
    findings = worst_first(
        Finding(code, "o", "t", region)
        for region in (second, first, None)
        for code in ("manifest-gap", "log-gap")
    )
    assert [(f.region, f.code) for f in findings] == [
        (region, code) for region in (None, first, second) for code in ("log-gap", "manifest-gap")
    ]


def test_every_code_is_in_the_reference_with_its_severity_and_repair():
    documented = re.findall(
        r"^\| `([a-z-]+)` \| (error|warning|information) \|.*\| (?:`([a-z-]+)`|-) \|$",
        findings.markdown(),
        re.MULTILINE,
    )
    assert documented == [
        (code, kind.severity.value, kind.repair.value if kind.repair else "")
        for code, kind in CODES.items()
    ]
