"""Rows whose region value is null have a region of their own, under every kind of region field."""

from datetime import date
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from support.oracles import native

import memwal
from memwal.region.spec import RegionSpec

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("n", pa.int64()),
    ]
)
ROWS = [
    {"id": 1, "name": None, "day": None, "n": 1},
    {"id": 2, "name": "abc", "day": date(2026, 5, 4), "n": 2},
    {"id": 3, "name": "abd", "day": date(2025, 5, 4), "n": 3},
    {"id": 4, "name": None, "day": None, "n": 4},
]
SPECS = {
    "identity": ("name", RegionSpec.identity("name", immutable=True)),
    "truncate": ("name", RegionSpec.truncate("name", 2, immutable=True)),
    "year": ("day", RegionSpec.year("day", immutable=True)),
    "bucket": ("name", RegionSpec.bucket("name", 4, immutable=True)),
}


def ids(found: Any) -> list[int]:
    return sorted(found.to_table().column("id").to_pylist())


@pytest.fixture(params=SPECS)
def divided(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[memwal.Table, str]:
    """A table with rows of null in a generation, and the column that divides it."""
    column, spec = SPECS[request.param]
    table = memwal.create(
        str(tmp_path / "table.lance"), SCHEMA, primary_key=["id"], region_spec=spec
    )
    with table.writer() as writer:
        writer.upsert(ROWS)
    return table, column


@pytest.mark.few(1)
def test_are_read_filtered_merged_and_collected(divided: tuple[memwal.Table, str]) -> None:
    table, column = divided
    for merged in (False, True):
        assert ids(table.scan()) == [1, 2, 3, 4]
        assert ids(table.scan(filter=f"{column} IS NULL")) == [1, 4]
        assert ids(table.scan(filter=f"{column} IS NOT NULL")) == [2, 3]
        assert ids(table.lookup([4, 3, 9])) == [3, 4]
        assert native.ordered(native.scan(table)) == native.ordered(table.scan().to_table())
        assert table.verify().clean
        table.build_snapshot()
        assert ids(table.at_most(3600).scan(filter=f"{column} IS NULL")) == [1, 4]
        if not merged:
            table.checkpoint()
            native.collect_all(table)


@pytest.mark.few(2)
def test_are_written_again_deleted_and_recovered(divided: tuple[memwal.Table, str]) -> None:
    table, column = divided
    writer = table.writer()
    writer.upsert([{**ROWS[0], "n": 10}])
    gone = pa.table({"id": [4], column: pa.nulls(1, SCHEMA.field(column).type)})
    writer.delete(gone)
    writer.abort()

    table.recover(min_age_seconds=0)

    assert ids(table.scan()) == [1, 2, 3]
    assert table.lookup([1]).to_pylist()[0]["n"] == 10
    table.merge()
    assert ids(table.scan(filter=f"{column} IS NULL")) == [1]


def test_of_an_identity_column_are_read_by_lancedb(tmp_path: Path) -> None:
    table = memwal.create(
        str(tmp_path / "shared.lance"),
        SCHEMA,
        primary_key=["id"],
        region_spec=RegionSpec.identity("name", immutable=True),
    )
    with table.writer() as writer:
        writer.upsert(ROWS)

    theirs = lancedb.connect(tmp_path).open_table("shared")

    assert sorted(row["id"] for row in theirs.search().to_list()) == [1, 2, 3, 4]
