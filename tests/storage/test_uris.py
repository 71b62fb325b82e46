from pathlib import Path

import pytest

from memwal.errors import InvalidInputError
from memwal.storage.uris import parse_uri


@pytest.mark.parametrize(
    ("given", "spelt"),
    [
        ("/data/t.lance", "/data/t.lance"),
        ("/data/t.lance/", "/data/t.lance"),
        ("/data/./x/../t.lance", "/data/t.lance"),
        ("//data//t.lance", "/data/t.lance"),
        ("file:///data/t.lance/", "/data/t.lance"),
        ("FILE:///data/t.lance", "/data/t.lance"),
        ("file://localhost/data/t.lance", "/data/t.lance"),
        ("file:///data/my%20table", "/data/my table"),
        ("/data/my%20table", "/data/my%20table"),
        ("/data/a:b", "/data/a:b"),
        ("s3://bucket/a/t.lance", "s3://bucket/a/t.lance"),
        ("S3://bucket/a/t.lance//", "s3://bucket/a/t.lance"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/my%20dir/t", "s3://bucket/my dir/t"),
        ("gs://bucket/t", "gs://bucket/t"),
        ("az://container/t", "az://container/t"),
        (
            "abfss://container@account.dfs.core.windows.net/t/",
            "abfss://container@account.dfs.core.windows.net/t",
        ),
        ("memory://name", "memory://name"),
        ("memory://name/t", "memory://name/t"),
    ],
)
def test_every_spelling_becomes_one(given: str, spelt: str) -> None:
    assert str(parse_uri(given)) == spelt
    assert str(parse_uri(spelt)) == spelt or "%" in given


def test_relative_paths_start_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert str(parse_uri("t.lance")) == str(tmp_path / "t.lance")
    assert str(parse_uri(Path("a") / "t")) == str(tmp_path / "a" / "t")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert str(parse_uri("~/t")) == str(tmp_path / "home" / "t")
    assert str(parse_uri("~ann/t")) == str(tmp_path / "~ann" / "t")


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "a\0b",
        "s4://bucket/t",
        "s3a://bucket/t",
        "https://host/t",
        "3s://KEY:s3cr3t@bucket/t",
        "3:/KEY:s3cr3t@bucket/t",
        "s3:/bucket/t",
        "file:/data/t",
        "file://host/data/t",
        "s3://",
        "s3:///t",
        "memory://",
        "s3://bucket/a/../t",
        "s3://bucket/a//t",
        "s3://bucket/%2e%2e/t",
        "s3://bucket/t.lance%252e",
        "s3://bucket/t?sig=s3cr3t",
        "s3://bucket/t#s3cr3t",
        "s3://key:s3cr3t@bucket/t",
        "s3://s3cr3t@bucket/t",
        "file:///KEY:s3cr3t@bucket/t",
        "file:///KEY:/s3cr3t@bucket/t",
        "az://container:s3cr3t@account/t",
    ],
)
def test_other_addresses_are_refused(uri: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_uri(uri)

    assert "s3cr3t" not in str(caught.value)
    for scheme in ("s3://", "gs://", "az://", "abfss://", "memory://", "file:///"):
        assert scheme in str(caught.value)
