"""memwal jobs: runs with their progress, and leases."""

from datetime import timedelta

import pytest

from memwal.catalog.leases import job_resource
from memwal.jobs.job import JobResult


@pytest.fixture
def runs(catalog):
    """Return the numbers of a run that goes on, one that failed and one that succeeded."""
    active = catalog.start_run("flights", "merge", version_before=3)
    catalog.update_run(active, done=3, total=8, rows=70, bytes=4096)
    failed = catalog.start_run("flights", "index")
    catalog.finish_run(failed, error="StoreUnavailableError: timeout")
    done = catalog.start_run("cities", "merge", version_before=4, lease_token=6)
    result = JobResult(
        job="merge", table="/c.lance", version=5, metrics={"rows_upserted": 9, "rows_deleted": 1}
    )
    catalog.finish_run(done, result=result.to_dict())
    return active, failed, done


def listed(cli, *arguments):
    return [run["run_id"] for run in cli("jobs", "list", *arguments, "--json").json]


def test_list_filters(cli, runs):
    active, failed, done = runs
    assert listed(cli) == [done, failed, active]
    assert listed(cli, "--table", "flights") == [failed, active]
    assert listed(cli, "--job", "merge") == [done, active]
    assert listed(cli, "--state", "running") == [active]
    assert listed(cli, "--state", "abandoned") == []
    assert listed(cli, "--limit", 1) == [done]
    assert cli("jobs", "list", "--limit", 1, "--json").stderr.startswith("warning: ")
    assert cli("jobs", "list", "--limit", 3, "--json").stderr == ""
    assert listed(cli, "--since-hours", 1) == [done, failed, active]
    assert listed(cli, "--since-hours", 0) == []
    assert cli("jobs", "list", "--state", "asleep").code == 2


def test_list_in_words(cli, runs):
    text = cli("jobs", "list").stdout
    assert "3/8 (37%)" in text
    assert "4 > 5" in text
    assert "4.0 KiB" in text
    assert "3 > ?" in text


def test_show(cli, runs):
    active, failed, done = runs
    assert cli("jobs", "show", done, "--json").json["result"]["version"] == 5
    text = cli("jobs", "show", done).stdout
    for word in ("succeeded", "rows_upserted", "4 > 5"):
        assert word in text
    assert "timeout" in cli("jobs", "show", failed).stdout
    assert "3/8 (37%)" in cli("jobs", "show", active).stdout
    missing = cli("jobs", "show", 99)
    assert missing.code == 1
    assert "99" in missing.stderr


def test_leases_and_release(cli, catalog):
    resource = job_resource("flights", "merge")
    lease = catalog.leases.acquire(resource, holder="host:1", ttl=timedelta(minutes=5))
    (shown,) = cli("jobs", "leases", "--json").json
    assert (shown["resource"], shown["holder"], shown["token"]) == (resource, "host:1", 1)
    assert resource in cli("jobs", "leases").stdout

    refused = cli("jobs", "release", resource)
    assert refused.code == 2
    assert "--force" in refused.stderr
    assert cli("jobs", "release", resource, "--force", "--token", 7).code == 3
    lease.check()

    done = cli("jobs", "release", resource, "--force")
    assert done.code == 0
    assert done.stderr.startswith("warning: host:1 ")
    assert resource in done.stdout
    assert cli("jobs", "leases", "--json").json == []
    assert [one["held"] for one in cli("jobs", "leases", "--ended", "--json").json] == [False]
    again = cli("jobs", "release", resource, "--force", "--json")
    assert again.json["held"] is False
    assert again.stderr == ""
    assert cli("jobs", "release", "never", "--force").code == 1
    lease.release()
