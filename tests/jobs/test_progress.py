"""Progress of jobs: reports that go from nothing to all, and a bar on a terminal only."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.data.merging import elsewhere
from support.data.tables import MakeTable, base_state, numbered

import memwal
from memwal.errors import ArgumentTypeError
from memwal.jobs.progress import JobProgress, Unit


def written(make_table: MakeTable) -> memwal.Table:
    """Return a table with two regions, an index, and four generations of 30 rows."""
    table = make_table(buckets=2, maintained_indexes=["id_idx"])
    with table.writer() as writer:
        for turn in range(2):
            writer.upsert(numbered(30 * turn, 30))
            writer.flush()
    return table


JOBS: dict[str, tuple[Callable[..., object], str, Unit]] = {
    "merge": (memwal.Table.merge, "merging", Unit.BYTES),
    "index": (memwal.Table.build_indexes, "indexing", Unit.ROWS),
    "compact": (memwal.Table.compact, "compacting", Unit.ROWS),
    "snapshot": (memwal.Table.build_snapshot, "reading", Unit.REGIONS),
    "gc": (memwal.Table.collect_garbage, "collecting", Unit.REGIONS),
    "verify": (memwal.Table.verify, "verifying", Unit.REGIONS),
}


def prepare(table: memwal.Table, job: str) -> dict[str, Any]:
    """Give the job something to do, and return its other options."""
    if job in ("index", "compact"):
        table.merge(commit_bytes=1)
    return {"min_fragments": 2} if job == "compact" else {}


@pytest.mark.few(6)
@pytest.mark.parametrize("run", [None, elsewhere], ids=["here", "elsewhere"])
@pytest.mark.parametrize("job", JOBS)
def test_a_job_reports_from_nothing_to_all(
    make_table: MakeTable, job: str, run: Callable[..., Any] | None
) -> None:
    table = written(make_table)
    options = prepare(table, job) | ({} if run is None else {"run": run})
    start, step, unit = JOBS[job]
    told: list[JobProgress] = []

    start(table, progress=told.append, **options)

    assert {(one.job, one.step, one.unit) for one in told} == {(job, step, unit)}
    assert told[0].done == 0
    assert told[-1].done == told[-1].total > 0
    assert [one.done for one in told] == sorted(one.done for one in told)


def test_a_merge_reports_each_commit(make_table: MakeTable) -> None:
    told: list[JobProgress] = []
    result = written(make_table).merge(commit_bytes=1, progress=told.append)
    assert len({one.done for one in told}) == result.commits + 1 == 5
    assert told[-1].total == result.metrics["bytes"]


def test_a_copy_reports_the_bytes_that_it_copied(make_table: MakeTable, tmp_path: Path) -> None:
    told: list[JobProgress] = []
    table = written(make_table)
    result = table.copy_to(tmp_path / "copy", progress=told.append)
    assert told[0].done == 0
    assert told[-1].done == told[-1].total == result.metrics["bytes"]
    assert (told[-1].step, told[-1].unit) == ("copying", Unit.BYTES)


def test_a_recovery_reports_its_regions(make_table: MakeTable) -> None:
    table = make_table(buckets=2)
    writer = table.writer()
    writer.upsert(numbered(0, 30))
    writer.abort()
    told: list[JobProgress] = []
    table.recover(min_age_seconds=0, progress=told.append)
    assert (told[-1].done, told[-1].total, told[-1].unit) == (2, 2, Unit.REGIONS)


def test_a_job_without_work_reports_nothing_to_do(table: memwal.Table) -> None:
    told: list[JobProgress] = []
    table.merge(progress=told.append)
    assert {(one.done, one.total) for one in told} == {(0, 0)}


def test_a_report_that_raises_stops_the_job_between_commits(make_table: MakeTable) -> None:
    table = written(make_table)

    def stop(progress: JobProgress) -> None:
        if progress.done:
            raise KeyError("stop")

    with pytest.raises(KeyError):
        table.merge(commit_bytes=1, progress=stop)
    assert 0 < len(base_state(table)) < 60
    table.merge()
    assert len(base_state(table)) == 60


@pytest.mark.parametrize("progress", ["yes", 1, object()])
def test_what_is_no_function_is_refused(table: memwal.Table, progress: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="progress"):
        table.merge(progress=progress)


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_bar_is_shown_on_a_terminal_only(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = written(make_table)
    monkeypatch.setenv("TERM", "xterm")
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stream)
        table.verify(progress=True)
        assert ("verifying 2 of 2 regions" in stream.getvalue()) is shown


def test_progress_is_text_for_people() -> None:
    done = JobProgress(job="merge", step="merging", done=512, total=3 << 20, unit=Unit.BYTES)
    assert str(done) == "merging 512 B of 3.0 MiB"
