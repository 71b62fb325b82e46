"""What the page is told."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.data.policies import spoil_policy

from memwal.catalog import Catalog, Policy
from memwal.catalog.models import BacklogSampleRow, JobRunRow
from memwal.errors import StoreAccessError
from memwal.jobs.due import JOBS
from memwal.jobs.job import JobResult, SkippedRegion

AsUser = Callable[..., Any]
WRITES = {"X-Requested-With": "memwal", "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def flights(backlog: Any, catalog: Catalog) -> Any:
    """Return the table, registered and looked at."""
    catalog.register(
        "flights", uri=backlog.uri, owner="ops", policy=Policy(tags=("air",), late_seconds=60)
    )
    catalog.record_backlog("flights", backlog.table.status())
    return backlog


def test_the_fleet(flights: Any, as_user: AsUser, catalog: Catalog) -> None:
    catalog.register("off", uri="/data/off.lance", enabled=False)
    run = catalog.start_run(
        "flights", "merge", external_id="memwal__flights/manual__1+00:00/merge/2"
    )
    catalog.finish_run(catalog.start_run("flights", "gc"), error="StoreAccessError: no")
    answer = as_user("viewer").get("/memwal/api/fleet").json()
    assert datetime.fromisoformat(answer["at"]).utcoffset() == timedelta(0)
    found, off = answer["tables"]
    status = flights.table.status()
    assert found["backlog"].pop("oldest_seconds") > 0
    backlog = {
        "generations": 5,
        "rows": status.backlog_rows,
        "bytes": status.backlog_bytes,
        "wal_entries": status.unflushed_wal_entries,
    }
    assert found["backlog"].items() >= backlog.items()
    task = "/dags/memwal__flights/runs/manual__1%2B00%3A00/tasks/merge/mapped/2"
    (working,) = found["running"]
    assert working["started_at"]
    assert {key: working[key] for key in ("run_id", "job", "link")} == {
        "run_id": run,
        "job": "merge",
        "link": task,
    }
    assert [error["reason"] for error in found["errors"]] == ["StoreAccessError: no"]
    expected = {
        "table": "flights",
        "uri": flights.uri,
        "owner": "ops",
        "enabled": True,
        "tags": ["air"],
        "dag_id": "memwal__flights",
        "health": "failing",
        "late_seconds": 60.0,
        "critical_seconds": 43_200.0,
        "rows_in_per_second": None,
        "rows_merged_per_second": 0.0,
        "lag_generations": 0,
        "regions": 2,
        "base_rows": status.base_rows,
        "version": status.version,
        "last_runs": {},
        "skipped_regions": 0,
    }
    assert {key: found[key] for key in expected} == expected
    (reason,) = found["reasons"]
    assert (reason["health"], reason["text"]) == ("failing", "gc fails: StoreAccessError: no")
    assert reason["runbook"].startswith("docs/runbooks/MemwalJobFailing.md")
    assert (off["health"], off["backlog"], off["sampled_at"]) == ("off", None, None)


def test_one_table(flights: Any, as_user: AsUser, catalog: Catalog) -> None:
    catalog.backoffs.skip_regions(
        "flights", [SkippedRegion(region_id=flights.cold, generation=1, reason="torn")]
    )
    result = JobResult(job="merge", table=flights.uri, version=3).to_dict()
    run = catalog.start_run("flights", "merge", external_id="memwal__flights/r1/merge/-1")
    catalog.finish_run(run, result={**result, "quality": {"failed": 3}})
    found = as_user("viewer").get("/memwal/api/tables/flights").json()
    status = json.loads(json.dumps(flights.table.status().to_dict()))
    assert "regions" not in found["status"]
    assert found["status"]["backlog_rows"] == status["backlog_rows"]
    assert set(found["due"]) == set(JOBS)
    assert set(found["due"]["merge"]) == {"reason", "postponed", "pressure", "critical"}
    assert found["due"]["merge"]["reason"]
    assert [(one["region_id"], one["reason"]) for one in found["skipped_regions"]] == [
        (flights.cold, "torn")
    ]
    assert found["policy"]["late_seconds"] == 60.0
    finished = catalog.run(run).finished_at
    assert found["quality"] == {
        "failed": 3,
        "at": finished and finished.isoformat(),
        "job": "merge",
        "link": "/dags/memwal__flights/runs/r1/tasks/merge",
    }
    assert (found["failed_jobs"], found["may_write"]) == ([], False)
    assert as_user("admin").get("/memwal/api/tables/flights").json()["may_write"] is True
    assert as_user("viewer").get("/memwal/api/tables/absent").status_code == 404


def test_ages_of_regions_go_on_while_a_table_does_not_change(
    flights: Any, as_user: AsUser, catalog: Catalog
) -> None:
    from memwal_airflow.web.views import region_rows

    (state,) = catalog.states(table="flights")
    first, same, later = (
        region_rows(state, now=state.at + timedelta(minutes=minutes)) for minutes in (0, 9, 21)
    )
    assert first == same
    ages = [one["oldest_backlog_seconds"] for one in first["regions"]]
    aged = [one["oldest_backlog_seconds"] for one in later["regions"]]
    assert aged == [age if age is None else age + 1200 for age in ages] != ages
    assert later["at"] != first["at"]


def test_regions_are_sent_once(flights: Any, as_user: AsUser, catalog: Catalog) -> None:
    client = as_user("viewer")
    answer = client.get("/memwal/api/tables/flights/regions")
    regions = answer.json()["regions"]
    assert {one["region_id"] for one in regions} == {flights.hot, flights.cold}
    tag = {"If-None-Match": answer.headers["ETag"]}
    again = client.get("/memwal/api/tables/flights/regions", headers=tag)
    assert (again.status_code, again.content) == (304, b"")
    catalog.record_backlog("flights", flights.table.status())
    assert client.get("/memwal/api/tables/flights/regions", headers=tag).status_code == 200
    catalog.register("new", uri="/data/new.lance")
    empty = {"at": None, "regions": []}
    assert client.get("/memwal/api/tables/new/regions").json() == empty


def test_a_policy_that_cannot_be_read_is_the_error_of_its_table_alone(
    flights: Any, as_user: AsUser, catalog: Catalog
) -> None:
    catalog.register("spoiled", uri="/data/spoiled.lance")
    spoil_policy(catalog, "spoiled", "{no json")
    client = as_user("viewer")
    rows = {row["table"]: row for row in client.get("/memwal/api/fleet").json()["tables"]}
    assert rows["flights"]["errors"] == []
    (error,) = rows["spoiled"]["errors"]
    assert (rows["spoiled"]["health"], error["job"]) == ("failing", "policy")
    found = client.get("/memwal/api/tables/spoiled").json()
    assert [one["job"] for one in found["errors"]] == ["policy"]


def test_the_runbook_of_an_error_is_a_link_if_it_is_configured(
    flights: Any, as_user: AsUser, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.backoffs.record_failure("flights", "status", StoreAccessError("no"))

    def link() -> object:
        (row,) = as_user("viewer").get("/memwal/api/fleet").json()["tables"]
        return row["errors"][0]["runbook_link"]

    assert link() is None
    monkeypatch.setenv("AIRFLOW__MEMWAL__RUNBOOK_URL", "https://docs.example/{alert}.html")
    assert link() == "https://docs.example/MemwalJobFailing.html#credentials"


def test_the_history_is_thinned_out(as_user: AsUser, catalog: Catalog) -> None:
    catalog.register("a", uri="/data/a.lance")
    now = datetime.now(UTC)
    with catalog.database.writing() as session:
        session.add_all(
            BacklogSampleRow(
                table="a",
                at=now - timedelta(seconds=10 * number + 5),
                generations=1,
                rows=100_000 - 10 * number,
                bytes=0,
                wal_entries=0,
            )
            for number in range(2000)
        )
        merge = {"state": "succeeded", "started_at": now, "finished_at": now, "rows": 9}
        session.add(JobRunRow(table="a", job="merge", **merge))
    client = as_user("viewer")
    samples = client.get("/memwal/api/tables/a/history").json()["samples"]
    assert len(samples) == 500
    assert samples[-1]["rows"] == 100_000
    assert samples[0]["rows_in_per_second"] is None
    assert samples[-1]["rows_in_per_second"] == pytest.approx(1.0)
    assert set(samples[0]) == {
        "at",
        "generations",
        "rows",
        "bytes",
        "wal_entries",
        "oldest_seconds",
        "lag_generations",
        "lag_rows",
        "reclaimable_bytes",
        "base_rows",
        "rows_in_per_second",
        "rows_merged_per_second",
    }
    assert len(client.get("/memwal/api/tables/a/history?hours=0.5").json()["samples"]) == 180
    for wrong in ("hours=0", "hours=x", "hours=nan"):
        answer = client.get(f"/memwal/api/tables/a/history?{wrong}")
        assert (wrong, answer.status_code) == (wrong, 422)
        assert "hours" in answer.json()["detail"]


def test_runs(as_user: AsUser, catalog: Catalog) -> None:
    catalog.register("a", uri="/data/a.lance")
    result = JobResult(
        job="merge", table="/a", version=7, metrics={"rows_upserted": 5}, warnings=("one",)
    )
    with catalog.record_run("a", "merge", external_id="d/r/t/-1", version_before=6) as run:
        run.finish(result)
    failed = catalog.start_run("a", "gc", external_id="elsewhere")
    catalog.finish_run(failed, error="no")
    going = catalog.start_run("a", "index")
    client = as_user("viewer")
    found = client.get("/memwal/api/tables/a/runs").json()["runs"]
    assert [one["run_id"] for one in found] == [going, failed, run.run_id]
    assert [one["state"] for one in found] == ["running", "failed", "succeeded"]
    assert (found[0]["finished_at"], found[0]["seconds"], found[0]["metrics"]) == (None,) * 3
    assert (found[1]["error"], found[1]["link"]) == ("no", None)
    assert found[2]["metrics"] == {"rows_upserted": 5}
    assert found[2]["warnings"] == ["one"]
    assert found[2]["link"] == "/dags/d/runs/r/tasks/t"
    assert (found[2]["rows"], found[2]["version_before"], found[2]["version_after"]) == (5, 6, 7)
    assert found[2]["seconds"] >= 0
    only = client.get("/memwal/api/tables/a/runs?job=gc&limit=5").json()["runs"]
    assert [one["job"] for one in only] == ["gc"]
    assert len(client.get("/memwal/api/tables/a/runs?limit=1").json()["runs"]) == 1


@pytest.mark.parametrize(
    "external_id", [None, "", "a/b/c", "a/b/c/d", "a/b//1", "a/b/c/1/2", "a/b/c/--1"]
)
def test_only_tasks_of_airflow_have_links(external_id: str | None) -> None:
    from memwal_airflow.links import task_link

    assert task_link(external_id) is None


def test_links_below_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    from memwal_airflow.links import app_path, task_link

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.com/air/")
    assert app_path("/") == "/air/memwal/"
    assert task_link("d/r/t/-1") == "/air/dags/d/runs/r/tasks/t"


class TestCollection:
    def test_what_would_go_and_why(
        self, flights: Any, as_user: AsUser, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from memwal_airflow.web import views

        looks = []
        collect_garbage = views.collect_garbage
        monkeypatch.setattr(
            views,
            "collect_garbage",
            lambda location, options: looks.append(options) or collect_garbage(location, options),
        )
        client = as_user("viewer")
        path = "/memwal/api/tables/flights/collection"
        found = client.get(path).json()
        assert found["would_delete"] == []
        kept = {(one["kind"], one["why"]): one["count"] for one in found["stays"]}
        assert kept["generation", "it is not merged yet"] == 5
        assert {"kind", "what", "region_id", "message", "delete"} <= set(found["examples"][0])
        assert found["warnings"] == []
        assert client.get(path).json() == found
        assert len(looks) == 1
        # By another policy it is another question.
        catalog.update("flights", policy=Policy(gc_grace_seconds=601))
        assert client.get(path).json()["at"] > found["at"]
        assert [options.grace_seconds for options in looks] == [600.0, 601]

    def test_it_deletes_nothing(self, flights: Any, as_user: AsUser) -> None:
        folder = Path(flights.uri)
        before = sorted(folder.rglob("*"))
        assert as_user("viewer").get("/memwal/api/tables/flights/collection").status_code == 200
        assert sorted(folder.rglob("*")) == before

    def test_a_table_that_cannot_be_opened(
        self, as_user: AsUser, catalog: Catalog, tmp_path: Path
    ) -> None:
        options = tmp_path / "options.json"
        nowhere = {"aws_endpoint": "http://127.0.0.1:9", "allow_http": "true"}
        secret = {"aws_access_key_id": "AKIAHUSH", "aws_secret_access_key": "hush-hush-hush"}
        # One try: nobody listens there.
        options.write_text(
            json.dumps({**nowhere, **secret, "aws_region": "x", "client_max_retries": "0"})
        )
        catalog.register("away", uri="s3://b/t.lance", storage_options_ref=str(options))
        catalog.register("absent", uri=str(tmp_path / "absent.lance"))
        catalog.register("foreign", uri="s3://b/t.lance", storage_options_ref="airflow:lake")
        client = as_user("viewer")
        for name in ("away", "absent", "foreign"):
            answer = client.get(f"/memwal/api/tables/{name}/collection")
            assert (name, answer.status_code) == (name, 502)
            assert answer.json()["detail"].startswith(f"{name} cannot be read")
            assert "hush" not in answer.text.lower()


class TestActions:
    def test_skipped_regions_are_tried_again(
        self, as_user: AsUser, catalog: Catalog, airflow_database: None
    ) -> None:
        catalog.register("a", uri="/data/a.lance")
        regions = [f"00000000-0000-0000-0000-00000000000{number}" for number in range(3)]
        catalog.backoffs.skip_regions(
            "a", [SkippedRegion(region_id=one, generation=1, reason="torn") for one in regions]
        )
        client = as_user("user")
        path = "/memwal/api/tables/a/retry"
        answer = client.post(path, json={"regions": regions[:1]}, headers=WRITES)
        assert answer.json() == {"retried": regions[:1]}
        assert [one.waiting for one in catalog.backoffs.skipped_regions()] == [False, True, True]
        assert client.post(path, json={}, headers=WRITES).json() == {"retried": regions}
        assert not any(one.waiting for one in catalog.backoffs.skipped_regions())

    def test_a_table_without_a_dag(self, as_user: AsUser, catalog: Catalog) -> None:
        catalog.register("a", uri="/data/a.lance")
        body = {"jobs": ["merge"], "regions": [], "force": True, "dry_run": False}
        answer = as_user("admin").post("/memwal/api/tables/a/runs", json=body, headers=WRITES)
        assert answer.status_code == 409
        assert "memwal__a" in answer.json()["detail"]

    @pytest.mark.parametrize(
        "body", [{"jobs": ["drop"]}, {"jobs": "merge"}, {"force": "yes"}, {"conf": {}}]
    )
    def test_what_a_run_cannot_be_told(
        self, as_user: AsUser, catalog: Catalog, body: dict[str, Any]
    ) -> None:
        catalog.register("a", uri="/data/a.lance")
        answer = as_user("admin").post("/memwal/api/tables/a/runs", json=body, headers=WRITES)
        assert answer.status_code == 422
        assert next(iter(body)) in answer.json()["detail"]


def test_tables_of_dags_that_one_may_not_read(
    as_user: AsUser, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    for name in ("mine", "theirs"):
        catalog.register(name, uri=f"/data/{name}.lance")

    def authorized(self: Any, *, method: str, user: Any, details: Any = None, **_: Any) -> bool:
        return details is not None and details.id == "memwal__mine"

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", authorized)
    client = as_user("viewer")
    assert [one["table"] for one in client.get("/memwal/api/fleet").json()["tables"]] == ["mine"]
    assert client.get("/memwal/api/tables/mine").json()["may_write"] is True
    for rest in ("", "/history", "/runs", "/collection"):
        hidden = client.get(f"/memwal/api/tables/theirs{rest}")
        absent = client.get(f"/memwal/api/tables/absent{rest}")
        assert (hidden.status_code, absent.status_code) == (404, 404)
        assert hidden.json()["detail"].replace("theirs", "absent") == absent.json()["detail"]


@pytest.fixture
def teams(served: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Airflow have the teams air and sea, of which air has the DAG of the table "d"."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.team import Team
    from airflow.utils.session import create_session
    from memwal_airflow.version_compat import TEAMS
    from sqlalchemy import delete

    if not TEAMS.here:
        pytest.skip(TEAMS.without)
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    bundle = DagBundleModel(name="air tables")
    bundle.teams = [Team(name="air")]
    rows = [Team(name="sea"), bundle]
    dag = DagModel(dag_id="memwal__d", bundle_name="air tables")
    with create_session() as session:
        session.add_all(rows)
        session.flush()
        session.add(dag)
    yield
    with create_session() as session:
        session.execute(delete(DagModel).where(DagModel.dag_id == "memwal__d"))
        session.delete(session.get(DagBundleModel, "air tables"))
        session.execute(delete(Team))


@pytest.mark.usefixtures("teams")
def test_tables_of_teams(
    as_user: AsUser, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    for name, owner in {"a": "air", "b": "sea", "c": "of no team", "d": "sea"}.items():
        catalog.register(name, uri=f"/data/{name}.lance", owner=owner)
    asked = []
    ask = SimpleAuthManager.filter_authorized_dag_ids

    def asks(self: Any, **options: Any) -> set[str]:
        asked.append(options["team_name"])
        return ask(self, **options)

    monkeypatch.setattr(SimpleAuthManager, "filter_authorized_dag_ids", asks)
    client = as_user("user", teams=["air"])
    listed = [row["table"] for row in client.get("/memwal/api/fleet").json()["tables"]]
    assert listed == ["a", "c", "d"]
    # One request for each team, however many tables there are.
    assert sorted(map(str, asked)) == ["None", "air", "sea"]
    for name in listed:
        assert client.get(f"/memwal/api/tables/{name}").json()["may_write"] is True
    assert client.get("/memwal/api/tables/b").status_code == 404
    assert client.post("/memwal/api/tables/b/runs", json={}, headers=WRITES).status_code == 404
