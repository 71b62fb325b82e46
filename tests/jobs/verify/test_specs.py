"""What the details of the MemWAL index say, spoiled in one way each."""

import shutil
from dataclasses import replace
from uuid import UUID

from support.data.tables import REGION, folder, manifest, rows

import memwal
from memwal.base_table.commit import update_details
from memwal.format.paths import manifest_key, region_dir
from memwal.jobs.verify import verify

NOBODY = UUID("00000000-0000-4000-8000-000000000000")


def change(spoiled, **changes):
    update_details(spoiled.table.location, lambda base: replace(base.details, **changes))


def test_progress_beyond_what_was_flushed(spoiled):
    change(spoiled, merged={REGION: 77})
    codes = spoiled.codes(quick=True)
    assert codes == ["progress-ahead"]


def test_progress_of_a_region_that_is_not_there(spoiled):
    change(spoiled, merged={REGION: 2, NOBODY: 4})
    assert spoiled.only("region-lost").region == NOBODY
    assert spoiled.codes(regions=[REGION]) == []


def test_a_maintained_index_that_does_not_exist(spoiled):
    change(spoiled, maintained_indexes=("id_idx", "n_idx"))
    assert spoiled.only("index-missing").object == "n_idx"


def test_catch_up_of_an_index_that_does_not_exist(spoiled):
    spoiled.change_details(lambda details: replace(details, catchup={"no_idx": {REGION: 2}}))
    assert spoiled.only("catchup-orphaned").severity.value == "information"


def test_a_snapshot_of_what_never_was(spoiled):
    spoiled.table.build_snapshot()
    newest = manifest(spoiled.table)
    # The region goes back to what a backup has of it.
    spoiled.manifest_path().unlink()
    spoiled.hint.write_text(f'{{"version": {newest.version - 1}}}')
    assert "snapshot-ahead" in spoiled.codes()
    assert set(spoiled.codes()) <= {"snapshot-ahead", "log-epoch-ahead"}


def test_two_specs_of_one_id(spoiled):
    specs = spoiled.table.base().details.region_specs
    other = replace(specs[0], spec_id=0)
    change(spoiled, region_specs=(*specs, other))
    assert spoiled.only("spec-repeated").object == "region spec 0"


def test_a_spec_that_nobody_understands(spoiled):
    (spec,) = spoiled.table.base().details.region_specs
    strange = replace(spec, fields=(replace(spec.fields[0], transform="zorder"),))
    change(spoiled, region_specs=(strange,))
    spoiled.only("spec-unusable")


def test_a_spec_that_is_on_its_way(make_table):
    table = make_table()
    (spec,) = table.base().details.region_specs
    pending = replace(
        spec, spec_id=2, fields=(replace(spec.fields[0], parameters={"pending": "true"}),)
    )
    update_details(table.location, lambda base: replace(base.details, region_specs=(spec, pending)))
    assert [f.code for f in verify(table.location).findings] == ["spec-pending"]


def test_two_regions_of_the_same_values(make_divided):
    spoiled, region = make_divided
    newest = manifest(spoiled.table, region)
    copy = replace(newest, region_id=NOBODY, version=1, flushed=(), replay_after=0, raw=b"")
    path = folder(spoiled.table) / manifest_key(NOBODY, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(replace(copy, wal_last_seen=0).encode())
    (path.parent / "version_hint.json").write_text('{"version": 1}')
    spoiled.only("region-values-repeated")


def test_a_divided_table_stays_clean(make_table):
    table = make_table(buckets=2)
    table.upsert(rows(dict.fromkeys(range(50), 1)))
    table.checkpoint()
    table = memwal.add_region_spec(table.uri, memwal.RegionSpec.bucket("id", 3))
    table.upsert(rows(dict.fromkeys(range(50), 2)))
    table.checkpoint()
    assert verify(table.location).findings == ()
    shutil.rmtree(folder(table) / region_dir(table.region_ids()[0]) / "wal")
    assert {f.code for f in verify(table.location).findings} == {"log-tip-lost"}
