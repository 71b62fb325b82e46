"""Options of a load."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from memwal.errors import InvalidInputError
from memwal.spark.read_options import ReadOptions, parse_options

REGION = "00000000-0000-8000-8000-000000000001"


def test_only_an_address() -> None:
    assert parse_options({"path": "s3://lake/table"}) == ReadOptions(uri="s3://lake/table")


def test_all_of_them() -> None:
    given = {
        "path": "t",
        "columns": '["a", "b,c"]',
        "filter": "a > 1",
        "tag": "monday",
        "regions": f"{REGION}, {REGION}",
        "partitions": "7",
        "target_partition_bytes": "1000",
        "omit_unsupported": "True",
        "truncate_nanoseconds": "false",
        "protect_seconds": "0",
        "storage_options_file": "/run/secrets/s3.json",
    }
    assert parse_options(given) == ReadOptions(
        uri="t",
        columns=("a", "b,c"),
        filter="a > 1",
        tag="monday",
        regions=frozenset({UUID(REGION)}),
        partitions=7,
        target_partition_bytes=1000,
        omit_unsupported=True,
        truncate_nanoseconds=False,
        protect_seconds=0,
        storage_options_file=Path("/run/secrets/s3.json"),
    )


@pytest.mark.parametrize(
    ("text", "columns"), [("", ()), ("[]", ()), (" a , b,", ("a", "b")), ('["x y"]', ("x y",))]
)
def test_columns(text: str, columns: tuple[str, ...]) -> None:
    assert parse_options({"path": "t", "columns": text}).columns == columns


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("columns", "[1]", "a JSON list of names"),
        ("protect_seconds", "-1", "a whole number from 0 to 2592000"),
        ("protect_seconds", "2592001", "a whole number from 0 to 2592000"),
        ("columns", "[a", "a JSON list of names"),
        ("filter", " ", "text"),
        ("version", "latest", "a whole number from 1 up"),
        ("version", "0", "a whole number from 1 up"),
        ("regions", "north", "UUIDs"),
        ("partitions", "-1", "a whole number from 1 up"),
        ("omit_unsupported", "yes", "true or false"),
    ],
)
def test_a_wrong_one(name: str, text: str, expected: str) -> None:
    with pytest.raises(InvalidInputError, match=f"the option {name} is .*{expected}"):
        parse_options({"path": "t", name: text})


def test_no_address() -> None:
    with pytest.raises(InvalidInputError, match="give its address"):
        parse_options({})


def test_an_unknown_one_is_named_and_not_shown() -> None:
    with pytest.raises(InvalidInputError, match="unknown options: token, user;") as caught:
        parse_options({"path": "t", "user": "me-myself", "token": "marker-1234"})
    assert "marker" not in str(caught.value)
    assert "myself" not in str(caught.value)
