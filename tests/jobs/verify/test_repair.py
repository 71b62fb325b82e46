"""What can be healed is, twice as well as once; what cannot is left."""

import shutil
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest
from support.data.sampled import every
from support.data.tables import REGION, folder, keys, listing, manifest, numbered, rows, state
from support.oracles import native
from support.stores.faulty_store import TABLE_MANIFEST, skip_waits

from memwal.base_table.commit import update_details
from memwal.format.bloom import FilterBuilder
from memwal.jobs.verify import repair


def heal(spoiled, *codes, state="done"):
    """Repair, and make sure that it is healed by exactly that."""
    report = spoiled.verify()
    assert {finding.code for finding in report.findings} == set(codes)
    before = listing(spoiled.root)
    planned = repair(spoiled.table.location, report)
    assert {action.state for action in planned} == {"would"}
    assert listing(spoiled.root) == before
    done = repair(spoiled.table.location, report, dry_run=False)
    assert state in {action.state for action in done}
    assert spoiled.verify().findings == ()
    again = repair(spoiled.table.location, report, dry_run=False)
    assert {action.state for action in again} == {"nothing"}
    return done


@pytest.mark.parametrize(
    ("hint", "code"),
    [(None, "hint-missing"), ("{", "hint-missing"), ('{"version": 1}', "hint-late")],
)
def test_hints(spoiled, hint, code):
    if hint is None:
        spoiled.hint.unlink()
    else:
        spoiled.hint.write_text(hint)
    heal(spoiled, code)


def test_a_hint_at_a_lost_version_is_left_to_a_person(spoiled):
    spoiled.hint.write_text('{"version": 99}')
    report = spoiled.verify()
    done = repair(spoiled.table.location, report, dry_run=False)
    assert all(action.state == "failed" for action in done)
    assert spoiled.hint.read_text() == '{"version": 99}'
    spoiled.hint.unlink()
    heal(spoiled, "hint-missing")


def test_no_hint_is_given_where_versions_are_missing(spoiled):
    spoiled.hint.unlink()
    spoiled.manifest_path(3).unlink()
    report = spoiled.verify()
    (action,) = repair(spoiled.table.location, report, dry_run=False)
    assert action.state == "failed"
    assert not spoiled.hint.exists()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("client", "number"),
    [
        ("ours", 1),
        ("native", 3),
        pytest.param("ours", 3, marks=pytest.mark.slow),
        pytest.param("native", 1, marks=pytest.mark.slow),
    ],
)
def test_bloom_filters(spoiled, number):
    path = spoiled.generation(number) / "bloom_filter.bin"
    path.unlink()
    heal(spoiled, "bloom-missing")
    path.write_bytes(bytes(32_768))
    heal(spoiled, "bloom-wrong")
    assert native.lookup(spoiled.table, pa.table({"id": keys(5)}))[0]["n"] == 2
    assert native.everything(spoiled.table)


@pytest.mark.parametrize("content", ["cut", "of other keys"])
def test_the_sized_filter_of_a_large_generation(make_table, content):
    table = make_table()
    table.upsert(numbered(0, 25_000))
    (path,) = folder(table).glob("_mem_wal/*/*_gen_*/memwal_bloom.bin")
    right = path.read_bytes()
    others = FilterBuilder(25_000)
    others.add([keys(*range(25_000, 50_000))])
    path.write_bytes(right[:-9] if content == "cut" else others.sized_filter())
    report = table.verify()
    assert [finding.code for finding in report.findings] == ["bloom-wrong"]
    (action,) = repair(table.location, report, dry_run=False)
    assert action.state == "done"
    assert path.read_bytes() == right
    assert table.verify().findings == ()


@pytest.mark.few(1)
@pytest.mark.parametrize("number", every(2, [1, 3]))
@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("native", "page_data.lance"),
        ("ours", "page_lookup.lance"),
        ("native", None),
        pytest.param("ours", "page_data.lance", marks=pytest.mark.slow),
        pytest.param("native", "page_lookup.lance", marks=pytest.mark.slow),
        pytest.param("ours", None, marks=pytest.mark.slow),
    ],
)
def test_key_indexes(spoiled, number, name):
    index = spoiled.generation(number) / "_pk_index"
    if name is None:
        shutil.rmtree(index)
    else:
        (index / name).unlink()
    heal(spoiled, "key-index-missing")
    shutil.copy(index / "page_lookup.lance", index / "page_data.lance")
    heal(spoiled, "key-index-wrong")
    assert [row["n"] for row in native.lookup(spoiled.table, pa.table({"id": keys(5, 10)}))] == [
        2,
        2,
    ]
    assert spoiled.table.lookup(keys(5, 3)).to_pylist() == rows({5: 2}).to_pylist()
    assert native.everything(spoiled.table)


def spoil_rows(spoiled, number):
    for path in (spoiled.generation(number) / "data").iterdir():
        path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.mark.few(1)
@pytest.mark.parametrize("client", ["ours", "native"])
def test_a_generation_that_is_gone(spoiled):
    before, seen = state(spoiled.table), native.everything(spoiled.table)
    shutil.rmtree(spoiled.generation(3))
    heal(spoiled, "generation-missing")
    assert native.everything(spoiled.table) == seen
    assert state(spoiled.table) == before
    # So does who makes do with the snapshot of the regions.
    stale = spoiled.table.at_most(timedelta(hours=1)).scan()
    assert state(stale.to_table()) == before
    spoiled.table.merge()
    assert state(spoiled.table) == before


def test_one_snapshot_is_published_for_all_generations(spoiled):
    before = spoiled.table.base().version
    for number in (1, 3):
        spoil_rows(spoiled, number)
    heal(spoiled, "generation-damaged")
    assert spoiled.table.base().version == before + 1


def test_a_snapshot_that_is_not_published_leaves_what_was_repaired(faults, spoiled, monkeypatch):
    skip_waits(monkeypatch)
    before = state(spoiled.table)
    shutil.rmtree(spoiled.generation(3))
    store = faults.of(spoiled.table.location)
    store.fail("create", TABLE_MANIFEST, times=1 << 30)
    version = spoiled.table.base().version
    heal(spoiled, "generation-missing")
    assert store.count("create", TABLE_MANIFEST) > 0
    assert spoiled.table.base().version == version
    assert state(spoiled.table) == before


@pytest.mark.few(1)
@pytest.mark.parametrize("client", ["ours", "native"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_generation_that_is_damaged(spoiled, number):
    before, seen = state(spoiled.table), native.everything(spoiled.table)
    old = spoiled.generation(number)
    spoil_rows(spoiled, number)
    heal(spoiled, "generation-damaged")
    assert native.everything(spoiled.table) == seen
    assert state(spoiled.table) == before
    # The collector takes the old one as what another try to flush it left.
    assert old.exists()
    assert old != spoiled.generation(number)


def test_a_generation_that_the_log_has_no_more(spoiled):
    shutil.rmtree(spoiled.generation(3))
    spoiled.entry(manifest(spoiled.table).replay_after).unlink()
    before = listing(spoiled.root)
    actions = repair(spoiled.table.location, spoiled.verify(), dry_run=False)
    (action,) = [it for it in actions if it.finding.code == "generation-missing"]
    assert action.state == "failed"
    assert listing(spoiled.root) == before


def test_snapshots(spoiled):
    location = spoiled.table.location
    update_details(location, lambda base: replace(base.details, inline_snapshots=b"x"))
    heal(spoiled, "snapshot-unreadable")
    update_details(location, lambda base: replace(base.details, num_regions=9))
    heal(spoiled, "region-count")


def test_catch_up_that_is_ahead(spoiled):
    spoiled.change_details(lambda details: replace(details, catchup={"id_idx": {REGION: 3}}))
    assert spoiled.only("catchup-ahead", quick=True).object == "id_idx"
    heal(spoiled, "catchup-ahead")
    assert spoiled.table.base().details.catchup == {"id_idx": {REGION: 2}}


@pytest.mark.few(1)
@pytest.mark.parametrize("client", ["ours", "native"])
def test_catch_up_that_is_not_true(spoiled):
    table = spoiled.table
    # The third generation lands in a fragment that no index covers.
    table.merge()
    assert spoiled.codes() == []
    update_details(
        table.location, lambda base: replace(base.details, catchup={"id_idx": {REGION: 3}})
    )
    assert spoiled.codes(quick=True) == []
    assert spoiled.only("catchup-unproven").object == "id_idx"
    heal(spoiled, "catchup-unproven")
    assert table.base().details.catchup.get("id_idx", {}).get(REGION, 0) == 0
    table.build_indexes()
    assert table.base().details.catchup == {"id_idx": {REGION: 3}}
    assert spoiled.codes() == []


def test_what_is_not_safe_is_left(spoiled):
    spoiled.entry(manifest(spoiled.table).replay_after + 1).unlink()
    spoiled.manifest_path(2).unlink()
    before = listing(spoiled.root)
    report = spoiled.verify()
    assert len(report.findings) == 2
    assert repair(spoiled.table.location, report, dry_run=False) == ()
    assert listing(spoiled.root) == before


def test_a_generation_that_was_collected_meanwhile(spoiled):
    (spoiled.generation(3) / "bloom_filter.bin").unlink()
    report = spoiled.verify()
    shutil.rmtree(spoiled.generation(3))
    (action,) = repair(spoiled.table.location, report, dry_run=False)
    assert action.state == "nothing"
    flushed = manifest(spoiled.table).flushed[-1]
    assert not spoiled.path(f"_mem_wal/{REGION}/{flushed.path}").exists()


def test_a_repair_that_fails_does_not_stop_the_others(spoiled):
    (spoiled.generation(1) / "bloom_filter.bin").unlink()
    (spoiled.generation(3) / "bloom_filter.bin").unlink()
    report = spoiled.verify()
    spoil_rows(spoiled, 1)
    states = {action.state for action in repair(spoiled.table.location, report, dry_run=False)}
    assert states == {"failed", "done"}


@pytest.mark.parametrize("client", ["ours", "native"])
def test_nothing_is_changed_by_looking(spoiled):
    before = listing(spoiled.root)
    spoiled.verify()
    assert listing(spoiled.root) == before
    assert state(spoiled.table)[5] == 2
