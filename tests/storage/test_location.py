import os
import pickle
from pathlib import Path

import pytest

from memwal.errors import InvalidInputError
from memwal.storage.local import LocalStore
from memwal.storage.location import TableLocation
from memwal.util.log import redact

OPTIONS = {
    "aws_access_key_id": "k",
    "aws_secret_access_key": "s3cr3t-value",
    "aws_region": "eu-west-1",
}


def test_spellings_of_one_table_are_one_location(tmp_path: Path) -> None:
    location = TableLocation(f"file://{tmp_path}/t/")

    assert location == TableLocation(str(tmp_path / "x" / ".." / "t"))
    assert hash(location) == hash(TableLocation(str(tmp_path / "t")))
    assert location.uri == str(location) == str(tmp_path / "t")
    assert location.local_path == tmp_path / "t"
    assert location.storage_options == {}


def test_options_tell_locations_apart() -> None:
    one = TableLocation("s3://bucket/t", OPTIONS)

    assert one == TableLocation("s3://bucket/t/", dict(reversed(OPTIONS.items())))
    assert one != TableLocation("s3://bucket/t")
    assert len({one, TableLocation("s3://bucket/t", OPTIONS), TableLocation("s3://bucket/t")}) == 2
    assert one.local_path is None


def test_nothing_shows_the_options() -> None:
    location = TableLocation("s3://bucket/t", OPTIONS)

    for shown in (repr(location), str(location), f"{location}", repr(location.store)):
        assert "s3cr3t-value" not in shown
        assert "eu-west-1" not in shown
    assert repr(location) == "TableLocation(uri='s3://bucket/t')"
    assert redact(location.storage_options)["aws_secret_access_key"] == "***"


def test_a_location_keeps_its_own_copy_of_the_options() -> None:
    options = dict(OPTIONS)
    location = TableLocation("s3://bucket/t", options)
    before = hash(location)

    options["aws_region"] = "elsewhere"

    assert location.storage_options == OPTIONS
    assert hash(location) == before


def test_a_location_is_pickled_as_address_and_options(tmp_path: Path) -> None:
    location = TableLocation(str(tmp_path / "t"), OPTIONS)
    location.store.create("a", b"x")

    again = pickle.loads(pickle.dumps(location))

    assert again == location
    assert hash(again) == hash(location)
    assert again.storage_options == OPTIONS
    assert again.store.get("a") == b"x"


def test_equal_locations_share_a_store(tmp_path: Path) -> None:
    one = TableLocation(str(tmp_path / "t"))

    assert isinstance(one.store, LocalStore)
    assert one.store is one.store
    assert one.store is TableLocation(f"{tmp_path}/t/").store
    assert one.store is not TableLocation(str(tmp_path / "u")).store
    assert one.store is not TableLocation(str(tmp_path / "t"), OPTIONS).store


@pytest.mark.parametrize(
    ("uri", "child"),
    [
        ("/data/t", "/data/t/_mem_wal/r/gen_1"),
        ("s3://bucket/t/", "s3://bucket/t/_mem_wal/r/gen_1"),
        ("s3://bucket", "s3://bucket/_mem_wal/r/gen_1"),
        ("memory://m/t", "memory://m/t/_mem_wal/r/gen_1"),
        ("/", "/_mem_wal/r/gen_1"),
    ],
)
def test_children_are_addresses(uri: str, child: str) -> None:
    assert TableLocation(uri).child("_mem_wal/r/gen_1") == child


@pytest.mark.parametrize("path", ["", "/a", "../a", "a//b"])
def test_children_stay_inside(path: str) -> None:
    with pytest.raises(InvalidInputError):
        TableLocation("/data/t").child(path)


def test_options_must_be_text() -> None:
    with pytest.raises(InvalidInputError, match="allow_http"):
        TableLocation("s3://bucket/t", {"allow_http": True})  # type: ignore[dict-item]


def test_fsync_can_be_left_out_on_a_local_disk_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    local = TableLocation(str(tmp_path / "t"))

    local.store_without_fsync.create("a", b"x")
    assert synced == []
    local.store.create("b", b"y")
    assert synced
    assert local.store.get("a") == b"x"
    assert local.store_without_fsync is TableLocation(f"{tmp_path}/t/").store_without_fsync

    remote = TableLocation("memory://without-fsync/t")
    assert remote.store_without_fsync is remote.store
