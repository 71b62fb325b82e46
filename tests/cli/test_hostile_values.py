"""What somebody wrote into a row, a name or an option does nothing to a terminal."""

import pyarrow as pa
import pytest

from memwal.cli.output import plain

CREATE = ["create", "t", "--primary-key", "a", "--regions"]
CLEARS = "\x1b[2J\x1b]0;owned\x07"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (CLEARS, r"\x1b[2J\x1b]0;owned\x07"),
        ("a\u202eb", r"a\u202eb"),
        ("\udcff", r"\udcff"),
        ("\x9b1m", r"\x9b1m"),
        ("caf\u00e9 \U0001f984\tx\ny", "caf\u00e9 \U0001f984\tx\ny"),
    ],
)
def test_plain(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_owners_and_rows(cli, catalog, table):
    catalog.register("t", uri=table.uri, owner=CLEARS)
    table.upsert(pa.table({"id": [1], "n": [1], "text": [CLEARS]}))
    region = table.region_ids()[0]
    for words in (
        ["catalog", "show", "t"],
        ["catalog", "list"],
        ["inspect", "wal", table.uri, region],
        ["status", CLEARS],
    ):
        answer = cli(*words)
        assert "\x1b" not in answer.stdout + answer.stderr
        assert r"\x1b[2J" in answer.stdout + answer.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["jobs", "list", "--limit", 10**30],
        ["jobs", "show", 10**30],
        ["jobs", "list", "--job", "\udcff"],
        ["jobs", "list", "--since-hours", "1e300"],
        ["catalog", "register", "x", "/x", "--owner", "\udcff"],
        ["catalog", "register", "x", "s3://[x"],
        ["catalog", "export", "/"],
        ["catalog", "list", "--catalog", "sqlite:////etc/passwd"],
        ["catalog", "list", "--catalog", "postgresql://u:hide-me@h:x/y"],
        ["catalog", "list", "--catalog", "postgresql://h:x/y?password=hide-me"],
        ["catalog", "migrate", "--catalog", "sqlite:////dev/null/x.db"],
        ["status", "\udcff"],
        ["status", "s3://AKIA:hide/me@bucket/t"],
        ["status", "s3:/AKIA:hide-me@bucket/t"],
        ["metrics", "serve", "--host", "\x80", "--port", "0"],
        [*CREATE, "unsharded", "--column", "a:int8[9999999999]"],
        [*CREATE, "bucket:a:" + "9" * 5_000, "--column", "a:int8"],
    ],
    ids=lambda words: " ".join(map(str, words))[:50],
)
def test_a_reason_and_a_code(cli, catalog, words):
    answer = cli(*words)
    assert answer.code in (1, 2, 3)
    assert answer.stderr.strip()
    # Not a fault of ours.
    assert "--debug" not in answer.stderr
    assert "hide" not in answer.stderr


def test_numbers_beyond_what_there_is(cli, table):
    table.upsert(pa.table({"id": [1], "n": [1], "text": ["x"]}))
    region = table.region_ids()[0]
    assert cli("inspect", "wal", table.uri, region, "--rows", 10**30).code == 0
    assert cli("inspect", "details", table.uri, "--version", 10**30).code == 2
    assert cli("inspect", "manifest", table.uri, region, "--version", 10**30).code == 2


def test_a_snapshot_that_cannot_be_written(cli, catalog, tmp_path):
    (tmp_path / "file").write_text("")
    answer = cli("catalog", "export", tmp_path / "file" / "x.json")
    assert answer.code in (1, 2)
    assert str(tmp_path / "file") in answer.stderr
