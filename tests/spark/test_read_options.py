"""Options of a load."""

from pathlib import Path
from uuid import UUID

import pytest

from memwal.errors import InvalidInputError
from memwal.spark.source.scan_plan import ReadOptions, parse_options

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
    ("name", "text"),
    [
        ("columns", "[1]"),
        ("protect_seconds", "-1"),
        ("protect_seconds", "2592001"),
        ("columns", "[a"),
        ("filter", " "),
        ("version", "latest"),
        ("version", "0"),
        ("regions", "north"),
        ("partitions", "-1"),
        ("omit_unsupported", "yes"),
    ],
)
def test_a_wrong_one(name: str, text: str) -> None:
    with pytest.raises(InvalidInputError, match=name):
        parse_options({"path": "t", name: text})


def test_no_address() -> None:
    with pytest.raises(InvalidInputError):
        parse_options({})


def test_an_unknown_one_is_named_and_not_shown() -> None:
    with pytest.raises(InvalidInputError, match="token, user") as caught:
        parse_options({"path": "t", "user": "me-myself", "token": "marker-1234"})
    assert "marker" not in str(caught.value)
    assert "myself" not in str(caught.value)
