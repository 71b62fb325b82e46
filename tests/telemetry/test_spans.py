"""Spans of jobs: which there are, below which, and what they say of errors."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import StatusCode
from support.data.tables import MakeTable, keys, numbered, rows

import memwal
from memwal.catalog import Catalog, Policy
from memwal.errors import StoreUnavailableError
from memwal.fleet import JobRequest, Runtime, run_job
from memwal.storage.location import TableLocation
from memwal.telemetry.spans import span

SECRET = "wJalrXUtnFEMI-bPxRfiCY"


@pytest.fixture
def flights(make_table: MakeTable, catalog: Catalog) -> memwal.Table:
    table = make_table(buckets=2)
    table.upsert(numbered(0, 20))
    catalog.register("flights", uri=table.uri, policy=Policy(merge_at_generations=1))
    return table


def attributes(found: Any) -> Mapping[str, Any]:
    return dict(found.attributes or {})


class TestSpan:
    def test_error_without_secrets_and_stack(self, traced: Any) -> None:
        location = TableLocation("s3://lake/t", {"aws_secret_access_key": SECRET})
        with (
            pytest.raises(StoreUnavailableError),
            span("memwal.step", location, attributes={"memwal.rows": 3}),
        ):
            raise StoreUnavailableError(f"refused {SECRET}\nrow 17 is here")
        (found,) = traced()
        assert attributes(found) == {
            "memwal.table.uri": "s3://lake/t",
            "memwal.rows": 3,
            "error.type": "StoreUnavailableError",
        }
        assert found.status.status_code is StatusCode.ERROR
        assert found.status.description == "StoreUnavailableError: refused ***"
        assert found.events == ()
        assert SECRET not in found.to_json()

    def test_words_of_others_are_not_repeated(self, traced: Any) -> None:
        with pytest.raises(ValueError, match="Alice"), span("memwal.step"):
            raise ValueError("Alice, 42")
        (found,) = traced()
        assert found.status.description == "ValueError"
        assert "Alice" not in found.to_json()

    def test_without_a_provider_nothing_is_recorded(self) -> None:
        with span("memwal.step") as current:
            assert not current.is_recording()


class TestJobs:
    def test_merge(self, traced: Any, catalog: Catalog, flights: memwal.Table) -> None:
        flights.delete(rows({1: 1}).column("id").combine_chunks())
        version = flights.base().version
        run_job(catalog, JobRequest("flights", "merge"))
        (job,) = traced.named("memwal.job")
        assert attributes(job) == {
            "memwal.table.uri": flights.uri,
            "memwal.table": "flights",
            "memwal.job": "merge",
        }
        (deleted,) = traced.named("memwal.merge.delete")
        (upserted,) = traced.named("memwal.merge.upsert")
        assert attributes(deleted)["memwal.rows"] == 1
        assert attributes(deleted)["memwal.version"] == version
        assert attributes(upserted)["memwal.rows"] == 19
        for found in (deleted, upserted):
            assert found.parent.span_id == job.context.span_id
            assert found.status.status_code is StatusCode.UNSET

    def test_every_try_of_a_commit(
        self,
        traced: Any,
        catalog: Catalog,
        flights: memwal.Table,
    ) -> None:
        keys = itertools.count(1000)

        def meet_another() -> None:
            """Before each commit, write to the base table directly, until one is refused."""
            if not traced.named("memwal.merge.upsert"):
                flights.base().dataset.insert(numbered(next(keys), 1))

        run_job(catalog, JobRequest("flights", "merge"), runtime=Runtime(guard=meet_another))
        first, second = traced.named("memwal.merge.upsert")
        assert "error.type" in attributes(first)
        assert first.status.status_code is StatusCode.ERROR
        assert second.status.status_code is StatusCode.UNSET

    def test_collection(self, traced: Any, catalog: Catalog, flights: memwal.Table) -> None:
        run_job(catalog, JobRequest("flights", "gc", force=True))
        (job,) = traced.named("memwal.job")
        steps = [found for found in traced() if found.name.startswith("memwal.collect.")]
        assert [found.name.rpartition(".")[2] for found in steps] == ["needs", "regions", "table"]
        assert {found.parent.span_id for found in steps} == {job.context.span_id}

    def test_one_that_is_not_due_has_none(
        self, traced: Any, catalog: Catalog, table: memwal.Table
    ) -> None:
        catalog.register("idle", uri=table.uri)
        run_job(catalog, JobRequest("idle", "merge"))
        assert traced() == []


class Mine(Exception):
    """An error of the block, which that of the processor must not hide."""


class Broken(SpanProcessor):
    """What somebody set up who did not look at what it does."""

    def __init__(self, when: str) -> None:
        self._when = when

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._when == "start":
            raise ConnectionError("no collector")

    def on_end(self, span: Any) -> None:
        if self._when == "end":
            raise ConnectionError("no collector")


@pytest.mark.parametrize("when", ["start", "end"])
def test_what_breaks_traces_breaks_no_merge(
    flights: memwal.Table, traced: Any, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    traced.provider.add_span_processor(Broken(when))
    flights.delete(keys(1))

    assert flights.merge().metrics["rows_upserted"] == 19
    with pytest.raises(Mine), span("memwal.step", flights.location):
        raise Mine

    assert "ConnectionError" in caplog.text
    assert trace.get_current_span() is trace.INVALID_SPAN
