"""Tables with blobs as data frames: their sizes, and the other columns."""

from pathlib import Path
from typing import Any

import pytest
from support.data.blobs import MARKED, V2, VALUES, VERSIONS, rows, schema

import memwal
import memwal.spark


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [MARKED, V2])
def test_blobs_are_described(spark: Any, tmp_path: Path, kind: str) -> None:
    table = memwal.create(
        tmp_path / "t.lance",
        schema(kind, key=False),
        primary_key=["id"],
        data_storage_version=VERSIONS[kind],
    )
    with table.writer() as writer:
        writer.upsert(rows(kind, range(5), VALUES, key=False))
        writer.flush()
        table.merge()
        writer.upsert(rows(kind, range(5, 10), VALUES, key=False))
        writer.flush()
        writer.upsert(rows(kind, range(10, 15), VALUES, key=False))
        writer.abort()
    memwal.spark.register(spark)
    sizes = [None if value is None else len(value) for value in VALUES]
    for fresh, copies in ((False, 2), (True, 3)):
        frame = spark.read.format("memwal").option("fresh", str(fresh)).load(table.uri)
        found = {row["id"]: row["image"] for row in frame.collect()}
        assert [
            None if found[key] is None else found[key]["size"] for key in sorted(found)
        ] == sizes * copies
        assert frame.where("n > 3").select("id").count() == 5 * copies - 4
