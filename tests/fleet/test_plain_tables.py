"""Lance tables without MemWAL in a fleet: only the jobs that they have, from due to done."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import memwal
from memwal.catalog import Catalog, Policy
from memwal.errors import TableSetupError
from memwal.fleet import Fleet, JobRequest, run_job, survey

JOBS = {"index", "compact", "gc", "quality"}


@pytest.fixture
def plain(tmp_path: Path, catalog: Catalog) -> memwal.Table:
    """A registered table of 20 small fragments, 19 of which its index does not cover."""
    uri = tmp_path / "lake" / "plain.lance"
    for number in range(20):
        dataset = lance.write_dataset(pa.table({"a": [number]}), uri, mode="append")
        if number == 0:
            dataset.create_scalar_index("a", "BTREE")
    policy = Policy(compact_min_fragments=2, index_at_rows=1)
    catalog.register("plain", uri=str(uri), policy=policy)
    return memwal.open(uri)


def test_its_jobs_are_due_and_done(plain: memwal.Table, catalog: Catalog) -> None:
    due = survey(catalog, catalog.get("plain")).due
    assert set(due) == JOBS
    assert {job for job, decision in due.items() if decision.reason} == {"index", "compact", "gc"}

    outcomes = Fleet(catalog).run_once()
    assert {outcome.job for outcome in outcomes} == {"index", "compact", "gc"}
    assert not any(outcome.failed for outcome in outcomes)
    status = plain.status()
    assert [lag.rows for lag in status.indexes] == [0]
    assert status.small_fragments == 0
    again = survey(catalog, catalog.get("plain")).due
    assert [job for job, decision in again.items() if decision.reason] == []


def test_a_compaction_is_due_by_the_sizes_of_the_policy(
    plain: memwal.Table, catalog: Catalog
) -> None:
    assert survey(catalog, catalog.get("plain")).status.small_fragments == 19
    catalog.update("plain", policy=Policy(compact_min_fragments=2, compact_target_rows=1))
    found = survey(catalog, catalog.get("plain"))
    assert found.status.small_fragments == 0
    assert found.due["compact"].reason is None


def test_a_job_that_it_does_not_have_is_an_error(plain: memwal.Table, catalog: Catalog) -> None:
    for force in (False, True):
        with pytest.raises(TableSetupError, match="memwal enable"):
            run_job(catalog, JobRequest("plain", "merge", force=force))
    # Nothing could end such a failure.
    assert catalog.runs() == []
    assert catalog.backoffs.failed_jobs() == []


def test_mem_wal_is_enabled_while_it_is_maintained(plain: memwal.Table, catalog: Catalog) -> None:
    Fleet(catalog).run_once()
    memwal.enable(plain.uri, primary_key="a")
    plain.upsert({"a": [100, 101]})
    catalog.update("plain", policy=Policy(merge_at_generations=1))
    outcomes = Fleet(catalog).run_once()
    assert "merge" in {outcome.job for outcome in outcomes}
    assert plain.base().dataset.count_rows() == 22


def test_all_tables_of_a_folder_are_maintained(
    tmp_path: Path, catalog: Catalog, url: str, plain: memwal.Table
) -> None:
    lance.write_dataset(pa.table({"a": [1]}), tmp_path / "lake" / "other.lance")
    added = memwal.maintain(str(tmp_path / "lake"), policy=Policy(tags=("lake",)), catalog_url=url)
    assert [(table.name, table.mem_wal, table.enabled) for table in added] == [
        ("other", False, True)
    ]
    # Again: nothing is new, and the folder has the newer policy.
    assert memwal.maintain(str(tmp_path / "lake"), owner="team", catalog_url=url) == []
    assert [folder.owner for folder in catalog.folders()] == ["team"]
