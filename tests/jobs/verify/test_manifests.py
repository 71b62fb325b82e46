"""The history of a region's manifest, spoiled in one way each."""

import json
import os
import re
import shutil
from dataclasses import replace
from uuid import UUID

import pytest
from support.data.tables import REGION, later, manifest, manifests
from support.oracles import native

from memwal.format.paths import region_dir, version_hint_key
from memwal.jobs.verify.manifests import read_history
from memwal.region.manifest_store import RegionManifestStore


def test_a_version_that_cannot_be_read(spoiled):
    spoiled.manifest_path(2).write_bytes(b"\xff\xff\xff")
    assert spoiled.only("manifest-damaged").region == REGION


def test_a_version_that_says_it_is_another(spoiled):
    shutil.copy(spoiled.manifest_path(2), spoiled.manifest_path(3))
    assert spoiled.only("manifest-mislabelled").object.endswith(spoiled.manifest_path(3).name)


def test_a_missing_version(spoiled):
    spoiled.manifest_path(3).unlink()
    text = spoiled.only("manifest-gap").text
    assert [int(number) for number in re.findall(r"\d+", text)] == [2, 4]


def test_versions_that_are_committed_after_the_listing_are_read(spoiled, monkeypatch):
    listed = RegionManifestStore.list_versions

    def list_the_first(self):
        versions = listed(self)
        return {version: versions[version] for version in sorted(versions)[:1]}

    stored = spoiled.table.location.store
    whole = read_history(stored, REGION)
    monkeypatch.setattr(RegionManifestStore, "list_versions", list_the_first)
    assert read_history(stored, REGION).manifests == whole.manifests


def test_versions_trimmed_from_the_front_are_no_gap(spoiled):
    for version in (1, 2, 3):
        spoiled.manifest_path(version).unlink()
    assert spoiled.codes() == []


def test_a_process_that_woke_late_leaves_a_stray(spoiled):
    for version in (2, 3):
        spoiled.manifest_path(version).unlink()
    stray = spoiled.manifest_path(1)
    later = spoiled.manifest_path(4).stat().st_mtime + 60
    os.utime(stray, (later, later))
    assert spoiled.only("manifest-stray").object.endswith(stray.name)


def test_a_crash_brings_back_what_was_collected(spoiled):
    first = spoiled.manifest_path(1).read_bytes()
    native.collect_all(spoiled.table)
    spoiled.manifest_path(1).write_bytes(first)
    os.utime(spoiled.manifest_path(1), (0, 0))
    assert spoiled.only("manifest-stray").severity.value == "information"
    # Those who follow this hint would take it for the newest.
    spoiled.path(version_hint_key(REGION)).write_text('{"version": 1}')
    assert "manifest-gap" in spoiled.codes()


def test_no_manifest_at_all(spoiled):
    shutil.rmtree(spoiled.manifest_path().parent)
    codes = spoiled.codes()
    # The progress and the snapshot of the region hang in the air, too.
    assert set(codes) == {"manifests-missing", "region-lost", "snapshot-ahead"}


def test_a_claim_that_died_at_once(spoiled):
    region = UUID("00000000-0000-4000-8000-000000000000")
    spoiled.path(f"_mem_wal/{region}/wal").mkdir(parents=True)
    assert spoiled.codes() == []
    assert spoiled.only("region-empty", regions=[region]).severity.value == "information"
    assert spoiled.verify(regions=[region]).clean


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("epoch-falls", {"writer_epoch": 1}),
        ("generation-falls", {"current_generation": 0}),
        ("replay-falls", {"replay_after": 0}),
    ],
)
def test_what_only_grows_falls(spoiled, code, change):
    before = manifest(spoiled.table)
    spoiled.next_manifest(**change)
    spoiled.next_manifest(**{name: getattr(before, name) for name in change})
    assert code in spoiled.codes()
    others = {"flushed-ahead", "log-epoch-ahead"} if code == "generation-falls" else set()
    assert set(spoiled.codes()) - others == {code}


@pytest.mark.parametrize("order", [(2, 1, 0), (0, 1, 2, 2)], ids=["reversed", "named twice"])
def test_flushed_generations_out_of_order(spoiled, order):
    flushed = manifest(spoiled.table).flushed
    spoiled.next_manifest(flushed=tuple(flushed[number] for number in order))
    spoiled.only("flushed-order")


def test_a_flushed_generation_of_the_future(spoiled):
    newest = manifest(spoiled.table)
    last = newest.flushed[-1]
    future = replace(last, generation=last.generation + 9, path="00000000_gen_12")
    shutil.copytree(
        spoiled.generation(last.generation), spoiled.path(f"{region_dir(REGION)}/{future.path}")
    )
    spoiled.next_manifest(flushed=(*newest.flushed, future))
    assert spoiled.only("flushed-ahead").text.startswith("12 ")


def test_a_folder_of_another_generation(spoiled):
    newest = manifest(spoiled.table)
    *others, last = newest.flushed
    spoiled.next_manifest(flushed=(*others, replace(last, path=others[0].path)))
    spoiled.only("flushed-path")


def test_a_generation_that_the_manifest_forgot(spoiled):
    newest = manifest(spoiled.table)
    spoiled.next_manifest(flushed=newest.flushed[:-1])
    assert "3" in spoiled.only("flushed-lost").text.split()


def test_a_generation_that_was_collected_is_not_lost(spoiled):
    newest = manifest(spoiled.table)
    spoiled.next_manifest(flushed=newest.flushed[1:])
    assert spoiled.codes() == []


def test_a_hint_may_come_a_moment_after_its_version(spoiled):
    spoiled.hint.unlink()
    os.utime(spoiled.manifest_path())
    assert spoiled.codes() == []
    assert spoiled.codes(clock=later(60)) == ["hint-missing"]


def test_a_hint_into_the_future(spoiled):
    spoiled.hint.write_text(json.dumps({"version": 99}))
    # Nothing else of the region can be compared.
    assert spoiled.codes()[0] == "hint-wrong"


def test_a_spec_that_the_table_has_not(spoiled):
    spoiled.next_manifest(spec_id=7)
    assert spoiled.only("region-spec-unknown").text.endswith("7")


def test_a_value_that_the_spec_has_not(spoiled):
    spoiled.next_manifest(region_fields=(("city", b"x"),))
    spoiled.only("region-values-wrong")


def test_values_change_in_the_life_of_a_region(make_divided):
    spoiled, region = make_divided
    manifests(spoiled.table, region).update(
        lambda newest: replace(newest, region_fields=(("bucket", b"\x07\0\0\0"),))
    )
    findings = spoiled.verify().findings
    assert {f.code for f in findings} == {"region-values-wrong"}
    assert any(re.findall(r"\d+", f.text)[-2:] == ["7", "2"] for f in findings)
