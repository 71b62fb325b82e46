"""What somebody who may write into a store could put there, one by one."""

import json
import os
import re
import struct
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import lance
import pyarrow as pa
import pytest
from fuzz.samples import foreign_entry
from support.data.tables import (
    REGION,
    base_state,
    collect_now,
    folder,
    keys,
    listing,
    manifest,
    manifests,
    region_folders,
    rows,
    state,
)
from support.oracles.failures import unexpected
from typer.testing import CliRunner

import memwal
from memwal.base_table.commit import update_details
from memwal.base_table.region_snapshot import read_snapshot, snapshot_rows
from memwal.base_table.snapshot import open_dataset
from memwal.cli.commands.app import app
from memwal.errors import CorruptDataError, ObjectNotFoundError
from memwal.format import paths
from memwal.format.region_manifest import RegionManifest
from memwal.quality.quarantine import origins_of
from memwal.region.manifest_store import RegionManifestStore
from memwal.storage.local import LocalStore

# Places


@pytest.mark.parametrize(
    "path", ["../../../outside", "/outside", "0123abcd_gen_1/../../../outside", "a\0"]
)
def test_no_generation_leads_out_of_the_table(
    table: memwal.Table, path: str, tmp_path: Path
) -> None:
    table.upsert(rows({1: 1}))
    outside = tmp_path / "outside"
    lance.write_dataset(table.scan().to_table(), str(outside))
    kept = listing(outside)
    newest = manifest(table)
    (flushed,) = newest.flushed
    bad = replace(
        newest, version=newest.version + 1, flushed=(replace(flushed, path=path),), raw=b""
    )
    manifests(table).commit(bad)
    for read in (
        lambda: table.scan().to_table(),
        lambda: table.lookup(keys(1)).to_table(),
        table.status,
    ):
        with pytest.raises(CorruptDataError, match=re.escape(repr(path))):
            read()
    assert repr(path) in table.merge().warnings[0]
    collect_now(table, orphan_grace_seconds=0, index_grace_seconds=0)
    assert table.verify().findings
    assert listing(outside) == kept


@pytest.mark.parametrize(
    "origin",
    [
        (str(REGION), "x') OR true --", 1),
        (str(REGION), "../0123abcd_gen_1", 1),
        ("' OR '' = '", "0123abcd_gen_1", 1),
        (None, None, None),
    ],
)
def test_no_filter_is_made_of_what_stands_in_a_quarantine(origin: tuple[Any, ...]) -> None:
    names_of = [f"quarantine_{name}" for name in ("region", "folder", "row")]
    stored = pa.table({name: [value] for name, value in zip(names_of, origin, strict=True)})
    with pytest.raises(CorruptDataError):
        origins_of(stored)


def test_a_snapshot_leads_to_no_other_file(table: memwal.Table) -> None:
    from memwal.base_table.region_snapshot import encode_pointer, external_key

    table.upsert(rows({1: 1}))
    schema = snapshot_rows([manifest(table)], ()).schema
    for key in ("../secret", "/etc/passwd", "data/x", "index.lance", "_indices//index.lance"):
        details = replace(table.base().details, inline_snapshots=encode_pointer(key, schema))
        with pytest.raises(CorruptDataError):
            external_key(details)
        with pytest.raises(CorruptDataError):
            read_snapshot(table.location.store, details)


def test_what_is_no_file_is_no_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("absent")
    with pytest.raises(ObjectNotFoundError):
        store.get("pipe")
    # A link that leads nowhere is no object either, but not absent: reading it is an error.
    for name in ("loop", "nowhere"):
        with pytest.raises(CorruptDataError):
            store.get(name)
    assert sorted(info.key for info in store.list("")) == ["loop", "nowhere"]


def test_odd_names_beside_the_regions_are_passed_over(table: memwal.Table) -> None:
    table.upsert(rows({1: 1}))
    regions = folder(table) / "_mem_wal"
    for name in (str(REGION).upper(), "..x", "x" * 200, "\u202e", "a\nb", os.fsdecode(b"\xff")):
        (regions / name / "manifest").mkdir(parents=True)
    mine = regions / str(REGION)
    for name in ("0123abcd_gen_-1", "0123abcd_gen_18446744073709551616", "0123abcd_gen_\u0661"):
        (mine / name).mkdir()
    far = "0" * 63 + "1"
    (mine / "wal" / f"{far}.arrow").write_bytes(b"")
    (mine / "manifest" / f"{far}.binpb").write_bytes(b"")
    (mine / "wal" / os.fsdecode(b".\xff\n\x1b[2J.tmp")).write_bytes(b"")
    again = memwal.open(table.uri)
    assert state(again) == {1: 1}
    assert again.region_ids() == [REGION]
    assert again.collect_garbage(dry_run=True, explain=True).warnings == ()
    for words in (["status"], ["verify"], ["gc", "--explain"], ["gc", "--explain", "--json"]):
        told = CliRunner().invoke(app, [words[0], table.uri, *words[1:]])
        assert unexpected(told) is None
        assert told.exit_code in (0, 1)
        assert "\x1b" not in told.output
    again.upsert(rows({2: 2}))
    assert state(again) == {1: 1, 2: 2}


def test_a_folder_in_the_place_of_a_hint_stops_nobody(table: memwal.Table) -> None:
    (folder(table) / paths.version_hint_key(REGION)).mkdir(parents=True)
    table.upsert(rows({1: 1}))
    assert state(table) == {1: 1}


def test_a_newest_manifest_of_zeros_is_told(table: memwal.Table) -> None:
    path = folder(table) / paths.table_manifest_keys(table.base().version)[0]
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CorruptDataError, match=re.escape(table.uri)):
        memwal.open(table.uri)


# Numbers and depth


@pytest.mark.parametrize(
    "hint",
    [
        b'{"version": 18446744073709551615}',
        b'{"version": 1e400}',
        b'{"version": true}',
        b'{"version": -1}',
        b"[" * 200_000,
        b"9" * 5_000,
        b"\xff",
        b"",
    ],
)
def test_a_hint_is_never_needed(table: memwal.Table, hint: bytes) -> None:
    table.upsert(rows({1: 1}))
    table.location.store.put(paths.version_hint_key(REGION), hint)
    again = memwal.open(table.uri)
    assert RegionManifestStore(again.location.store, REGION).read_latest() == manifest(table)
    again.upsert(rows({2: 2}))
    assert state(again) == {1: 1, 2: 2}


@pytest.mark.parametrize(
    "field", ["version", "writer_epoch", "current_generation", "replay_after", "wal_last_seen"]
)
def test_a_manifest_counts_no_further_than_names_go(field: str) -> None:
    plain = RegionManifest(region_id=REGION, version=1, writer_epoch=1)
    beyond = replace(plain, **{field: paths.MAX_COUNTER + 1}).encode()
    with pytest.raises(CorruptDataError, match=str(paths.MAX_COUNTER + 1)):
        RegionManifest.decode(beyond)


def test_the_manifest_of_another_region_is_refused(table: memwal.Table) -> None:
    table.upsert(rows({1: 1}))
    newest = manifest(table)
    other = replace(newest, version=newest.version + 1, region_id=UUID(int=7), raw=b"")
    table.location.store.create(paths.manifest_key(REGION, other.version), other.encode())
    with pytest.raises(CorruptDataError, match=str(UUID(int=7))):
        table.scan().to_table()


@pytest.mark.parametrize("position", ["8", "9" * 30])
def test_progress_that_nobody_made_takes_no_generation(table: memwal.Table, position: str) -> None:
    """A number in the details is all that says which generations may go."""
    table.upsert(rows({1: 1}))
    kept = region_folders(table)
    generation = min(int(position), paths.MAX_COUNTER)
    update_details(table.location, lambda base: replace(base.details, merged={REGION: generation}))
    for _ in range(2):
        found = collect_now(table, orphan_grace_seconds=0, index_grace_seconds=0)
        assert str(generation) in found.warnings[0]
    assert region_folders(table) == kept
    assert [flushed.path for flushed in manifest(table).flushed] == sorted(kept)
    assert base_state(table) == {}


def test_rows_that_do_not_fit_the_table_are_told(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("vector", pa.list_(pa.float32(), 2))]
    )
    table = memwal.create(tmp_path / "table", schema, primary_key="id")
    with table.writer() as writer:
        writer.claim()
    newest = manifest(table)
    wider = pa.table(
        {"id": [1], "vector": pa.array([[0.0] * 3], pa.list_(pa.float32(), 3))},
    )
    tip = max(newest.replay_after, newest.wal_last_seen) + 1
    table.location.store.create(paths.wal_key(REGION, tip), foreign_entry(wider))
    entry = paths.wal_key(REGION, tip)
    with pytest.raises(CorruptDataError, match=entry), table.writer() as writer:
        writer.claim()


# What is kept beside the rows


def wide_table(make_table: Any) -> memwal.Table:
    """A generation of 1,000 keys."""
    table: memwal.Table = make_table()
    table.upsert(rows({number: number for number in range(1_000)}))
    return table


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:1_000],
        lambda data: bytes(len(data)),
        lambda data: data[:4_096] + bytes(4_096) + data[8_192:],
    ],
)
def test_a_filter_that_was_not_written_whole_hides_nothing(make_table: Any, damage: Any) -> None:
    table = wide_table(make_table)
    (path,) = folder(table).rglob("bloom_filter.bin")
    path.write_bytes(damage(path.read_bytes()))
    assert table.lookup(keys(*range(1_000))).count_rows() == 1_000


@pytest.mark.parametrize("file", ["page_data.lance", "page_lookup.lance"])
@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: bytes(len(data))])
def test_a_key_index_that_is_damaged_hides_nothing(make_table: Any, file: str, damage: Any) -> None:
    table = wide_table(make_table)
    (path,) = folder(table).rglob(file)
    path.write_bytes(damage(path.read_bytes()))
    assert table.lookup(keys(3, 999, 1_000)).count_rows() == 2


def test_a_key_index_that_leads_elsewhere_is_told(make_table: Any) -> None:
    table = wide_table(make_table)
    (generation,) = manifest(table).flushed
    (path,) = folder(table).rglob("page_data.lance")
    data = path.read_bytes()
    three, four = (struct.pack("<Q", number) for number in (3, 4))
    # The numbers of two rows, neighbours as their keys are.
    ids = data.rindex(three + four)
    path.write_bytes(data[:ids] + three + three + data[ids + 16 :])
    with pytest.raises(CorruptDataError, match=generation.path):
        table.lookup(keys(4)).to_table()
    assert {found.code for found in table.verify().findings} == {"key-index-wrong"}


def test_a_snapshot_that_cannot_be_read_is_done_without(table: memwal.Table) -> None:
    table.upsert(rows({1: 1}))
    table.build_snapshot()
    update_details(
        table.location, lambda base: replace(base.details, inline_snapshots=b"no Lance file")
    )
    again = memwal.open(table.uri)
    assert state(again.at_most(timedelta(days=1))) == {1: 1}
    assert again.status().changed_regions == 1
    assert [found.code for found in again.verify().findings] == ["snapshot-unreadable"]
    again.build_snapshot()
    assert again.verify().findings == ()


@pytest.mark.parametrize(
    ("old", "new", "bad"),
    [
        (b"abcdef", b"abcdeg", b"abc\0ef"),
        (b"qwerty", b"qwertz", b"qwe\0ty"),
        (b"Europe/Rome", b"Europe/Oslo", b"Europe\0Rome"),
    ],
)
def test_a_zero_byte_in_a_name_does_not_end_the_process(
    tmp_path: Path, old: bytes, new: bytes, bad: bytes
) -> None:
    table = memwal.create(
        tmp_path / "table",
        pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                ("abcdef", pa.struct([("qwerty", pa.int64())])),
                ("at", pa.timestamp("us", "Europe/Rome")),
            ]
        ),
        primary_key="id",
    )
    path = folder(table) / paths.table_manifest_keys(table.base().version)[0]
    whole = path.read_bytes()
    path.write_bytes(whole.replace(old, new))
    open_dataset(table.location)
    path.write_bytes(whole.replace(old, bad))
    with pytest.raises(CorruptDataError):
        open_dataset(table.location)


def test_storage_options_are_not_followed_into_depth(tmp_path: Path) -> None:
    from memwal.errors import InvalidInputError
    from memwal.storage.credentials import read_options_file

    path = tmp_path / "options.json"
    path.write_text(json.dumps({"aws_region": "x"})[:-1] + ', "secret": ' + "[" * 200_000)
    with pytest.raises(InvalidInputError) as caught:
        read_options_file(path)
    assert "secret" not in str(caught.value)
