"""Write the golden tables of the present version: small ones, with every feature that is stored.

``make golden`` does so, once for each release; the folder of an earlier version is never written
again. Each has ``tables.tar.xz``, with a folder per table, ``tables.json``, with what is true of
them, and per table the rows that it shows, as ``{name}.parquet``, and those that it shows once its
logs are replayed, where they differ, as ``{name}.replayed.parquet``.
"""

import argparse
import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from support.data import indexed, quarantined  # noqa: E402
from support.data.tables import SCHEMA, keys, rows  # noqa: E402

import memwal  # noqa: E402
from memwal.jobs.options import SnapshotOptions  # noqa: E402
from memwal.jobs.table.snapshot import build_snapshot  # noqa: E402

TAG = "golden"


def plain(uri: str) -> memwal.Table:
    """Generations merged and not, deletes, some columns only, a tag, and a log left unflushed."""
    table = memwal.create(
        uri,
        SCHEMA,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.unsharded(),
        maintained_indexes=["id_idx"],
    )
    quarantined.flush(table, {i: i for i in range(60)}, {i: i + 1 for i in range(10)}, [3, 4, 30])
    table.merge()
    table.build_indexes()
    table.base().dataset.tags.create(TAG, table.base().dataset.version)
    quarantined.flush(table, dict.fromkeys(range(50, 70), 7), [51], {51: 8}, [52])
    writer = table.writer()
    writer.upsert(rows({80: 1, 81: 2, 5: 3}))
    numbers = pa.table({"id": keys(6, 7), "n": pa.array([None, 60], pa.int64())})
    writer.upsert(numbers.append_column("text", pa.array(["6=None", "7=60"])), partial=True)
    writer.delete(keys(0, 81))
    writer.abort()
    return table


def collected(uri: str) -> memwal.Table:
    """Two buckets whose logs are trimmed and generations collected, compacted, with more after."""
    schema = pa.schema([pa.field("code", pa.string(), nullable=False), ("n", pa.int32())])
    table = memwal.create(
        uri,
        schema,
        primary_key=["code"],
        region_spec=memwal.RegionSpec.bucket("code", 2),
        maintained_indexes=["code_idx"],
    )

    def write(first: int, count: int) -> None:
        with table.writer() as writer:
            ids = range(first, first + count)
            data = {"code": [f"code {i}" for i in ids], "n": [i % 5 for i in ids]}
            writer.upsert(pa.table(data, schema=schema))
            writer.delete(pa.array([f"code {first + 1}"]))

    for first in (0, 20, 40):
        write(first, 25)
        table.merge()
    table.compact(min_fragments=2)
    table.build_indexes()
    table.build_snapshot()
    table.collect_garbage(
        dry_run=False,
        grace_seconds=0,
        retention_seconds=0,
        orphan_grace_seconds=0,
        index_grace_seconds=0,
        version_retention_seconds=0,
    )
    write(70, 5)
    return table


def searched(uri: str) -> memwal.Table:
    """Scalar, vector and text indexes over base table and generations, caught up in part."""
    dataset = lance.write_dataset(indexed.rows(0, 300), uri, schema=indexed.SCHEMA)
    indexed.create_index(dataset, "BTREE", name="n_idx")
    indexed.create_index(dataset, "INVERTED", name="text_idx")
    indexed.create_index(dataset, "IVF_PQ", name="vector_idx")
    table = memwal.enable(
        uri,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
        maintained_indexes=["n_idx", "text_idx", "vector_idx"],
    )
    for start in (280, 310):
        with table.writer() as writer:
            writer.upsert(indexed.rows(start, 40))
            writer.delete(keys(start + 3))
        table.merge(run_bytes=1)
    table.build_indexes(indexes=["n_idx"])
    table.build_snapshot()
    return table


def tenants(uri: str) -> memwal.Table:
    """One region for each of twelve values, and a snapshot of them in a file of its own."""
    schema = pa.schema([pa.field("tenant", pa.int32(), nullable=False), ("note", pa.string())])
    table = memwal.create(
        uri, schema, primary_key=["tenant"], region_spec=memwal.RegionSpec.identity("tenant")
    )
    table.upsert(pa.table({"tenant": range(12), "note": ["x"] * 12}, schema=schema))
    build_snapshot(table.location, SnapshotOptions(inline_regions=4))
    return table


def divided_anew(uri: str) -> memwal.Table:
    """One region at first, then one per month and bucket, and a column that came later."""
    schema = pa.schema(
        [
            pa.field("day", pa.timestamp("us"), nullable=False),
            pa.field("id", pa.int64(), nullable=False),
            ("n", pa.int64()),
        ]
    )
    table = memwal.create(
        uri, schema, primary_key=["id"], region_spec=memwal.RegionSpec.unsharded()
    )

    def write(ids: range, **more: Any) -> None:
        now = table.schema
        days = [datetime(2026, 1 + i % 3, 1) for i in ids]
        data = {"day": days, "id": list(ids), "n": [i * 2 for i in ids], **more}
        table.upsert(pa.table(data, schema=pa.schema([now.field(name) for name in data])))

    write(range(20))
    months = memwal.RegionSpec.month("day", immutable=True)
    divided = memwal.RegionSpec.combine(months, memwal.RegionSpec.bucket("id", 2))
    memwal.add_region_spec(table.uri, divided)
    write(range(10, 30))
    table.base().dataset.add_columns(pa.field("later", pa.string()))
    write(range(28, 36), later=["came"] * 8)
    return table


def typed(uri: str) -> memwal.Table:
    """A key of two columns, and columns of many types, with nulls."""
    schema = pa.schema(
        [
            pa.field("a", pa.string(), nullable=False),
            pa.field("b", pa.int32(), nullable=False),
            ("blob", pa.binary()),
            ("flag", pa.bool_()),
            ("price", pa.decimal128(9, 2)),
            ("at", pa.timestamp("us", tz="UTC")),
            ("day", pa.date32()),
            ("words", pa.list_(pa.string())),
            ("place", pa.struct([("lat", pa.float64()), ("name", pa.string())])),
            ("half", pa.float16()),
        ]
    )
    table = memwal.create(
        uri, schema, primary_key=["a", "b"], region_spec=memwal.RegionSpec.bucket("a", 2)
    )
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    data = [
        {
            "a": f"key \0 {i % 3} ä",
            "b": -i,
            "blob": bytes([i, 0, 255]) if i % 2 else None,
            "flag": [True, False, None][i % 3],
            "price": Decimal(i * 7) / 100,
            "at": moment + timedelta(hours=i),
            "day": moment.date(),
            "words": [None, [], ["one", None]][i % 3],
            "place": {"lat": i / 3, "name": None} if i % 4 else None,
            "half": None,
        }
        for i in range(12)
    ]
    with table.writer() as writer:
        writer.upsert(pa.Table.from_pylist(data, schema=schema))
        writer.flush()
        writer.upsert(pa.Table.from_pylist([{**data[5], "flag": True}], schema=schema))
        writer.delete(pa.table({"a": [data[7]["a"]], "b": pa.array([-7], pa.int32())}))
    return table


def expressed(uri: str) -> memwal.Table:
    """Regions by an expression, and rows that an expectation put into quarantine."""
    table = memwal.create(
        uri,
        SCHEMA,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.expression("col0 % 3", ["id"], pa.int64()),
    )
    quarantined.flush(table, {i: i for i in range(12)}, {4: -4, 5: 5, 6: 600}, {4: 40})
    table.merge(quality=quarantined.rules("quarantine"))
    quarantined.flush(table, {20: -1, 21: 21})
    return table


TABLES: dict[str, Callable[[str], memwal.Table]] = {
    make.__name__: make
    for make in (plain, collected, searched, tenants, divided_anew, typed, expressed)
}


def rows_of(table: memwal.Table) -> pa.Table:
    """Rows that a table shows, by key."""
    return by_key(table, table.scan().to_table())


def by_key(table: memwal.Table, rows: pa.Table) -> pa.Table:
    """Rows in the order of their keys, without what Lance notes in the schema."""
    order = [(name, "ascending") for name in table.primary_key]
    return rows.sort_by(order).replace_schema_metadata()


def facts_of(table: memwal.Table) -> dict[str, Any]:
    """What is stored about a table besides its rows, as plain JSON."""
    base = table.base()
    status = table.status()
    number, spec = table.region_spec()
    tags = base.dataset.tags.list()
    return {
        "primary_key": list(table.primary_key),
        "region_spec": [number, str(spec)],
        "version": base.dataset.version,
        "base_rows": base.dataset.count_rows(),
        "at_tag": table.at(TAG).scan().to_table().num_rows if TAG in tags else None,
        "snapshot_regions": base.details.num_regions,
        "maintained_indexes": list(base.details.maintained_indexes),
        "indexes_behind": {one.name: one.generations for one in status.indexes},
        "quarantined": quarantined.quarantine(table).read().num_rows,
        "regions": {
            str(region.region_id): {
                "epoch": region.writer_epoch,
                "sealed": region.sealed,
                "merged": region.merged_generation,
                "backlog": region.backlog_generations,
                "backlog_rows": region.backlog_rows,
                "log_entries": region.unflushed_wal_entries,
            }
            for region in status.regions
        },
    }


def make(folder: Path) -> None:
    """Write the golden tables into a new folder."""
    folder.mkdir(parents=True)
    told: dict[str, Any] = {
        "memwal": memwal.__version__,
        "pylance": version("pylance"),
        "tables": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name, create in TABLES.items():
            table = memwal.open(create(str(Path(scratch) / name)).uri)
            told["tables"][name] = facts_of(table)
            pq.write_table(rows_of(table), folder / f"{name}.parquet", compression="zstd")
        with tarfile.open(folder / "tables.tar.xz", "w:xz", preset=9) as archive:
            for path in sorted(Path(scratch).iterdir()):
                archive.add(path, arcname=path.name, filter=_nobody)
        for name in TABLES:
            table = memwal.open(str(Path(scratch) / name))
            with table.writer() as writer:
                writer.claim()
                replayed = by_key(table, writer.scan().to_table())
            if replayed != rows_of(table):
                raise AssertionError(f"{name}: what was replayed is not what was flushed")
            if replayed != pq.read_table(folder / f"{name}.parquet"):
                pq.write_table(replayed, folder / f"{name}.replayed.parquet", compression="zstd")
    (folder / "tables.json").write_text(json.dumps(told, indent=1) + "\n")


def _nobody(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who made a file."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the golden tables of this version.")
    parser.add_argument(
        "--again", action="store_true", help="replace them: only before this version is released"
    )
    options = parser.parse_args()
    folder = FOLDER / memwal.__version__
    if folder.exists():
        if not options.again:
            print(f"{folder.name} has its golden tables already; --again replaces them")
            return 1
        shutil.rmtree(folder)
    make(folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{len(TABLES)} tables of memwal {memwal.__version__}: {size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
