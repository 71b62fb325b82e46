"""What fails lasts until the same succeeds once, and says what to do."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from sqlalchemy import text
from support.data import statuses
from support.data.policies import spoil_policy

from memwal.catalog import Catalog, Policy, read_snapshot
from memwal.catalog.failures import (
    ADVICE_BY_ERROR,
    ADVICE_BY_JOB,
    POLICY_JOB,
    REGION_JOB,
    JobError,
    job_errors,
)
from memwal.catalog.records import (
    _KIND_OF_CLASS,
    DAG_JOB,
    LOG_JOB,
    PROGRESS_JOB,
    STATUS_JOB,
    ErrorKind,
)
from memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    SparkUnavailableError,
    StoreAccessError,
)
from memwal.fleet import Fleet, overview, register_folder
from memwal.fleet.health import Health
from memwal.fleet.tables import add_folder
from memwal.jobs.job import JobResult, SkippedRegion
from memwal.jobs.status import TableStatus
from memwal.util.retry import LostRaceError

RUNBOOKS = Path(__file__).resolve().parents[2] / "docs" / "runbooks"
SPOILED = ["{no json", '"text"', '{"merge_at_generatoins": 3}', '{"schedule": "sometimes"}', "null"]
NOTHING = JobResult(job="merge", table="/data/a.lance", version=1)


def status(missing: int | None = None, before: int | None = None) -> TableStatus:
    return statuses.status(statuses.region(missing_wal_entry=missing, merged_before=before))


@pytest.fixture
def a(catalog: Catalog) -> Catalog:
    catalog.register("a", uri="/data/a.lance", policy=Policy(tags=("air",)))
    return catalog


def errors(catalog: Catalog) -> dict[str, JobError]:
    (found,) = overview(catalog, table="a")
    return {error.job: error for error in found.errors}


class TestUntilOneSuccess:
    def test_a_job(self, a: Catalog) -> None:
        for reason in ("StoreAccessError: no", "StoreUnavailableError: later"):
            a.backoffs.record_failure("a", "merge", reason)
        found = errors(a)["merge"]
        # The newest reason, since the first failure; the second came before the next try.
        assert (found.reason, found.attempts) == ("StoreUnavailableError: later", 1)
        assert found.next_try_at == a.backoffs.failed_jobs()[0].next_try_at
        a.finish_run(a.start_run("a", "index"), result=NOTHING.to_dict())
        assert set(errors(a)) == {"merge"}
        a.finish_run(a.start_run("a", "merge"), result=NOTHING.to_dict())
        assert errors(a) == {}

    def test_a_run_that_goes_on_neither_ends_nor_hides_it(self, a: Catalog) -> None:
        first = a.finish_run(a.start_run("a", "merge"), error="ConflictError: first")
        last = a.finish_run(a.start_run("a", "merge"), error="ConflictError: second")
        a.start_run("a", "merge")
        found = errors(a)["merge"]
        assert (found.reason, found.run_id) == ("ConflictError: second", last.run_id)
        assert (found.since, found.at) == (first.finished_at, last.finished_at)

    def test_the_status(self, a: Catalog) -> None:
        a.backoffs.record_failure("a", STATUS_JOB, "TableSetupError: there is no table")
        assert set(errors(a)) == {STATUS_JOB}
        a.record_backlog("a", status())
        assert errors(a) == {}

    def test_a_log_that_lacks_an_entry(self, a: Catalog) -> None:
        a.record_backlog("a", status(missing=7))
        found = errors(a)
        assert set(found) == {LOG_JOB}
        assert re.search(r"\b7\b.*memwal abandon", found[LOG_JOB].reason)
        a.record_backlog("a", status())
        assert errors(a) == {}

    def test_a_base_table_that_went_back(self, a: Catalog) -> None:
        a.record_backlog("a", status(before=3))
        assert set(errors(a)) == {PROGRESS_JOB}
        a.record_backlog("a", status())
        assert errors(a) == {}


class TestUnreadablePolicies:
    @pytest.mark.parametrize("policy", SPOILED)
    def test_its_table_is_listed_with_the_problem_and_the_others_as_they_are(
        self, a: Catalog, tmp_path: Path, policy: str
    ) -> None:
        a.register("b", uri="/data/b.lance")
        spoil_policy(a, "a", policy)
        spoiled, fine = a.list()
        assert (spoiled.policy, fine.problem) == (Policy(), None)
        assert spoiled.problem is not None
        with pytest.raises(InvalidInputError, match="memwal catalog policy set a"):
            a.get("a")
        assert a.get("a", allow_problem=True) == spoiled
        assert set(errors(a)) == {POLICY_JOB}
        a.export_snapshot(tmp_path / "tables.json")
        assert [table.name for table in read_snapshot(tmp_path / "tables.json")] == ["b"]
        a.update("a", policy=Policy(priority=3))
        assert (a.get("a").policy.priority, errors(a)) == (3, {})

    @pytest.mark.parametrize("policy", SPOILED)
    def test_its_folder_registers_no_table_and_is_replaced_or_removed(
        self, a: Catalog, tmp_path: Path, policy: str
    ) -> None:
        address = str(tmp_path / "lake")
        lance.write_dataset(pa.table({"a": [1]}), tmp_path / "lake" / "new.lance")
        a.add_folder(address, policy=Policy(priority=3))
        spoil_policy(a, address, policy)
        (folder,) = a.folders()
        assert (folder.policy, folder.problem is None) == (Policy(), False)
        with pytest.raises(InvalidInputError, match=re.escape(f"register --all {address}")):
            register_folder(a, folder)
        Fleet(a).run_once()
        assert [table.name for table in a.list()] == ["a"]
        assert a.remove_folder(address) == folder
        a.add_folder(address)
        spoil_policy(a, address, policy)
        assert [table.name for table in add_folder(a, address)] == ["new"]
        assert a.folders()[0].problem is None

    def test_it_is_the_one_reason_that_the_status_was_not_read(self, a: Catalog) -> None:
        spoil_policy(a, "a", "{")
        a.backoffs.record_failure("a", STATUS_JOB, "InvalidInputError: the policy ...")
        assert set(errors(a)) == {POLICY_JOB}

    def test_its_history_is_kept_whatever_the_default_says(self, a: Catalog) -> None:
        run = a.finish_run(a.start_run("a", "merge"), error="no")
        assert run.finished_at is not None
        spoil_policy(a, "a", "{")
        later = run.finished_at + timedelta(days=400)
        a.prune(now=later)
        assert [one.run_id for one in a.runs(table="a")] == [run.run_id]
        a.update("a", policy=Policy())
        a.prune(now=later)
        assert a.runs(table="a") == []

    def test_a_record_of_a_newer_memwal_is_one_with_a_problem(
        self, a: Catalog, tmp_path: Path
    ) -> None:
        path = tmp_path / "tables.json"
        a.register("b", uri="/data/b.lance")
        a.update("a", policy=Policy(merge_at_generations=2))
        a.export_snapshot(path)
        path.write_text(path.read_text().replace('"merge_at_generations"', '"of_the_future"', 1))
        newer, known = read_snapshot(path)
        assert (newer.name, known.problem) == ("a", None)
        assert newer.problem is not None


def test_a_stored_status_that_cannot_be_read_counts_as_none(a: Catalog) -> None:
    for name in ("a", "b"):
        a.record_backlog(name, status())
    for spoiled in ("{", "{}", '{"regions": 3}'):
        with a.database.writing() as session:
            session.execute(
                text("UPDATE table_states SET status = :status WHERE table_name = 'a'"),
                {"status": spoiled},
            )
        assert [state.table for state in a.states()] == ["b"]


def test_skipped_regions_are_one_failure_with_the_reason_of_the_first(a: Catalog) -> None:
    late = SkippedRegion(region_id="a", generation=9, reason="the later one")
    a.backoffs.skip_regions("a", [SkippedRegion(region_id="b", generation=2, reason="a file")])
    a.backoffs.skip_regions("a", [late])
    (found,) = overview(a, table="a")
    (error,) = found.errors
    assert (error.job, error.attempts, found.health) == (REGION_JOB, 1, Health.FAILING)
    waiting = [record.next_try_at for record in a.backoffs.skipped_regions("a")]
    assert error.next_try_at == min(waiting)
    assert re.search("2.*b.*2.*a file", error.reason)
    assert error.reason in [reason.text for reason in found.reasons]
    assert error.runbook.endswith("MemwalRegionSkipped.md#what-to-do")
    a.backoffs.clear_regions("a", ["a", "b"])
    assert errors(a) == {}


class TestAdvice:
    def test_by_the_job_by_the_error_and_otherwise(self, a: Catalog) -> None:
        def action(job: str, error: BaseException | str) -> str:
            a.backoffs.record_failure("a", job, error)
            return errors(a)[job].action

        assert action("merge", StoreAccessError("no")) == ADVICE_BY_ERROR[ErrorKind.ACCESS].action
        assert action("gc", LostRaceError("late")) == ADVICE_BY_ERROR[ErrorKind.CONFLICT].action
        assert action("index", MemoryError()) == ADVICE_BY_ERROR[ErrorKind.LIMIT].action
        server = action("quality", SparkUnavailableError("no answer"))
        assert server == ADVICE_BY_ERROR[ErrorKind.SPARK_SERVER].action
        assert action(DAG_JOB, StoreAccessError("no")) == ADVICE_BY_JOB[DAG_JOB].action
        # The text says nothing about the kind.
        assert action("compact", "StoreAccessError: no") == action("quality", KeyError("no"))
        for job in ("merge", "index", "gc", "compact", "quality", DAG_JOB):
            a.backoffs.clear_failure("a", job)
        run = a.start_run("a", "gc", beats=True)
        with a.database.writing() as session:
            session.execute(text("UPDATE job_runs SET heartbeat_at = '2020-01-01 00:00:00'"))
        (dead,) = job_errors(a.get("a"), a.latest_runs()["a"], [])
        assert (dead.run_id, dead.action) == (run, ADVICE_BY_ERROR[ErrorKind.DIED].action)

    @pytest.mark.parametrize(
        ("job", "due", "seconds", "remains"),
        [
            ("merge", {}, 1, False),
            ("index", {"merge": "rows"}, 1, False),
            ("merge", {"merge": "rows"}, 1, True),
            ("merge", {}, -1, True),
            ("gc", {}, 1, True),
        ],
    )
    def test_a_merge_that_died_and_is_not_due_any_more_had_done_its_work(
        self, a: Catalog, job: str, due: dict[str, str], seconds: int, remains: bool
    ) -> None:
        a.update("a", policy=Policy(schedule="@due"))
        a.start_run("a", job, beats=True)
        with a.database.writing() as session:
            session.execute(text("UPDATE job_runs SET heartbeat_at = '2020-01-01 00:00:00'"))
        a.reports.record_due("a", due)
        runs, died = a.latest_runs()["a"], datetime(2020, 1, 1, tzinfo=UTC)
        found = job_errors(
            a.get("a"),
            runs,
            [],
            due=a.reports.due_jobs(),
            polled_at=died + timedelta(seconds=seconds),
        )
        assert [error.job for error in found] == [job] * remains

    def test_the_kind_of_a_run_is_stored_and_its_text_without_data(self, a: Catalog) -> None:
        with pytest.raises(ValueError, match="row"), a.record_run("a", "merge") as run:
            raise ValueError("a row of a customer")
        stored = a.run(run.run_id)
        assert (stored.error, stored.error_type) == ("ValueError", ErrorKind.OTHER)
        with pytest.raises(CorruptDataError), a.record_run("a", "merge") as run:
            raise CorruptDataError("a file is cut off")
        stored = a.run(run.run_id)
        assert (stored.error, stored.error_type) == (
            "CorruptDataError: a file is cut off",
            ErrorKind.DAMAGED,
        )
        assert errors(a)["merge"].action == ADVICE_BY_ERROR[ErrorKind.DAMAGED].action

    def test_every_runbook_has_the_section(self) -> None:
        every = [*ADVICE_BY_JOB.values(), *ADVICE_BY_ERROR.values()]
        for advice in every:
            page, _, section = advice.runbook.partition("#")
            titles = re.findall(r"^#+ (.+)$", (RUNBOOKS / page).read_text(), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w]+", "-", title.lower()) for title in titles}
            assert not section or section in anchors, advice.runbook

    def test_errors_are_named_as_they_are(self) -> None:
        names = {kind.__name__ for kind in _all_kinds(MemWalError)}
        assert set(_KIND_OF_CLASS) - names == {"SparkApplicationError", "MemoryError"}
        assert set(ADVICE_BY_ERROR) == set(ErrorKind) - {ErrorKind.OTHER}


def _all_kinds(kind: type) -> set[type]:
    return {kind}.union(*(_all_kinds(one) for one in kind.__subclasses__()))
