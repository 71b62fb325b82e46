"""Situations that pages take for granted: ``<!-- given: flights -->``.

Each makes its tables, and damages them, in the folder that it is given, and writes nothing else.
"""

import contextlib
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from support.data.tables import age
from support.stores.empty_catalog import put_empty_catalog

import memwal
from memwal.catalog import Catalog, Policy
from memwal.catalog.leases import job_resource
from memwal.catalog.models import LeaseRow
from memwal.fleet import JobRequest, run_job
from memwal.format.paths import parse_wal_name
from memwal.jobs.index.migration import IndexMigration
from memwal.quality.rules import QualityRules

FLIGHTS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("delay", pa.float32())]
)

GIVEN: dict[str, Callable[[Path], None]] = {}


def given(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Give a situation the name that pages use."""
    GIVEN[make.__name__.replace("_", " ")] = make
    return make


def _flights(folder: Path) -> memwal.Table:
    """A table of two regions with two generations each: flights 0 to 99, of which the second
    generations have every tenth again, later."""
    uri = folder / "flights.lance"
    # Not the times of the files, by which a generation is as old as the first of the tables.
    shutil.copytree(_first_flights()[1], uri, copy_function=shutil.copyfile)
    return memwal.open(str(uri))


@functools.cache
def _first_flights() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """The table that each page gets a copy of, and the folder that goes with the process."""
    home = tempfile.TemporaryDirectory(prefix="memwal-flights-")
    uri = Path(home.name) / "flights.lance"
    table = memwal.create(
        uri, FLIGHTS, primary_key="id", region_spec="bucket:id:2", maintained_indexes=["id_idx"]
    )
    with table.writer() as writer:
        for step in (1, 10):
            writer.upsert(_rows(range(0, 100, step), delay=float(step)))
            writer.flush()
    return home, uri


def _rows(ids: Iterable[int], *, delay: float) -> pa.Table:
    known = list(ids)
    return pa.table(
        {"id": known, "city": ["EWR"] * len(known), "delay": [delay] * len(known)}, schema=FLIGHTS
    )


@contextlib.contextmanager
def _catalog(folder: Path) -> Iterator[Catalog]:
    """The catalog that the command line takes by itself when this folder is its home."""
    path = folder / ".local" / "share" / "memwal" / "catalog.db"
    put_empty_catalog(path)
    catalog = Catalog(f"sqlite:///{path}")
    yield catalog
    catalog.close()


def _registered(folder: Path, table: memwal.Table, **policy: Any) -> memwal.Table:
    name = Path(table.uri).stem
    with _catalog(folder) as catalog:
        catalog.register(name, uri=table.uri, policy=Policy(**policy))
    return table


@given
def flights(folder: Path) -> None:
    """The table ``flights.lance`` with a backlog of four generations, registered as ``flights``."""
    _registered(folder, _flights(folder))


@given
def late_flights(folder: Path) -> None:
    """The same, due for a merge and late by its policy."""
    table = _registered(
        folder, _flights(folder), merge_at_generations=2, late_seconds=60, critical_seconds=120
    )
    age(table, 300)


@given
def restored_flights(folder: Path) -> None:
    """Restore the version before the last merge, as Lance does."""
    table = _flights(folder)
    table.merge()
    version = table.base().version
    table.upsert(_rows(range(10), delay=30.0))
    table.merge()
    lance.dataset(table.uri, version=version).restore()


@given
def merged_flights(folder: Path) -> None:
    """The same, merged and not indexed."""
    _registered(folder, _flights(folder)).merge()


@given
def collectable_flights(folder: Path) -> None:
    """The same, merged and indexed, an hour and more ago."""
    table = _registered(folder, _flights(folder))
    table.merge()
    table.build_indexes()
    age(table, 7200, pattern="**/*")


@given
def expired_consumer(folder: Path) -> None:
    """The same, where the consumer ``embeddings`` may hold nothing, and is behind."""
    table = _registered(folder, _flights(folder))
    consumer = table.consumer("embeddings")
    consumer.commit(consumer.read().token)
    table.merge()
    table.collect_garbage(dry_run=False, consumer_bytes=0)


@given
def tagged_flights(folder: Path) -> None:
    """The same, with a tag on the version before the merge."""
    table = _registered(folder, _flights(folder))
    base = table.base()
    base.dataset.tags.create("before-the-merge", base.dataset.version)
    table.merge()
    table.build_indexes()


@given
def skipped_region(folder: Path) -> None:
    """The same, where data of a generation are gone, a merge has found out, and ``backup`` has
    them."""
    table = _registered(folder, _flights(folder))
    shutil.copytree(folder / "flights.lance", folder / "backup")
    _lose_data(folder)
    with _catalog(folder) as catalog:
        run_job(catalog, JobRequest("flights", "merge", force=True))
    if table.status().backlog_generations != 2:
        raise RuntimeError("one region was meant to be merged, and one to be skipped")


def _lose_data(folder: Path) -> None:
    lost = min(folder.glob("flights.lance/_mem_wal/*/*_gen_1/data"))
    shutil.rmtree(lost)


@given
def flights_out_of_reach(folder: Path) -> None:
    """The same, where somebody moved the table without telling the catalog."""
    _registered(folder, _flights(folder))
    (folder / "flights.lance").rename(folder / "moved.lance")


@given
def flights_and_a_backup(folder: Path) -> None:
    """The table as it was first, and a copy of it in ``backup.lance``."""
    _registered(folder, _flights(folder))
    shutil.copytree(folder / "flights.lance", folder / "backup.lance")


@given
def lost_files(folder: Path) -> None:
    """Data of two generations, of one of them the log too, and the Bloom filter of another."""
    _lose_data(folder)
    min(folder.glob("flights.lance/_mem_wal/*/*_gen_2/bloom_filter.bin")).unlink()
    gone = max(folder.glob("flights.lance/_mem_wal/*/*_gen_1/data"))
    shutil.rmtree(gone)
    for entry in gone.parents[1].glob("wal/*"):
        entry.unlink()


@given
def a_lost_region(folder: Path) -> None:
    """The folder of the first region with a mark is deleted."""
    first = min(path.name for path in (folder / "flights.lance/_memwal_regions").iterdir())
    shutil.rmtree(folder / "flights.lance/_mem_wal" / first)


@given
def unflushed_flights_and_a_backup(folder: Path) -> None:
    """The same table, where a producer died that had written and not flushed."""
    table = _registered(folder, _flights(folder))
    with contextlib.suppress(InterruptedError), table.writer() as writer:
        writer.upsert(_rows(range(200, 220), delay=1.0))
        writer.upsert(_rows(range(220, 240), delay=1.0))
        raise InterruptedError
    shutil.copytree(folder / "flights.lance", folder / "backup.lance")


@given
def dead_writer(folder: Path) -> None:
    """The same table, some minutes after its producer died with 40 unflushed flights."""
    table = _registered(folder, _flights(folder))
    with contextlib.suppress(InterruptedError), table.writer() as writer:
        writer.upsert(_rows(range(200, 240), delay=1.0))
        raise InterruptedError
    age(table, 600)


@given
def spoiled_log_entry(folder: Path) -> None:
    """An entry that is to be replayed, and is not the last one, has other bytes."""
    for region in sorted(folder.glob("flights.lance/_mem_wal/*/wal")):
        entries = sorted(region.iterdir(), key=lambda path: parse_wal_name(path.name) or 0)
        data = bytearray(entries[-2].read_bytes())
        data[len(data) // 2] ^= 0xFF
        entries[-2].write_bytes(bytes(data))
        return


@given
def stuck_lease(folder: Path) -> None:
    """The merge of ``flights`` is leased by somebody who does not let go."""
    _registered(folder, _flights(folder))
    now = datetime.now(UTC)
    held = LeaseRow(
        resource=job_resource("flights", "merge"),
        holder="worker-7",
        token=1,
        ttl_seconds=86_400.0,
        acquired_at=now - timedelta(hours=1),
        expires_at=now + timedelta(days=1),
    )
    with _catalog(folder) as catalog, catalog.database.writing() as session:
        session.add(held)


@given
def orders(folder: Path) -> None:
    """The table ``orders.lance`` with one flushed generation, in no catalog."""
    table = memwal.create(
        folder / "orders.lance",
        pa.schema([("id", pa.int64()), ("state", pa.string())]),
        primary_key="id",
    )
    table.upsert(pa.table({"id": range(100), "state": ["new"] * 100}))


@given
def quarantined_orders(folder: Path) -> None:
    """The table ``orders.lance``, registered as ``orders``, whose merge kept two rows out."""
    table = memwal.create(
        folder / "orders.lance",
        pa.schema([("id", pa.int64()), ("price", pa.float64())]),
        primary_key="id",
    )
    between = {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "price", "min_value": 0},
    }
    rules = QualityRules.from_dict({"mode": "quarantine", "suite": [between]})
    table.upsert(pa.table({"id": [1, 2, 3], "price": [9.5, -1.0, -2.0]}))
    _registered(folder, table, quality=rules)
    with _catalog(folder) as catalog:
        run_job(catalog, JobRequest("orders", "merge", force=True))


def _photos(ids: range) -> pa.Table:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("vector", pa.list_(pa.float32(), 8))]
    )
    vectors = np.random.default_rng(ids.start).standard_normal(len(ids) * 8).astype("float32")
    return pa.table(
        {"id": list(ids), "vector": pa.FixedSizeListArray.from_arrays(vectors, 8)}, schema=schema
    )


def _indexed_photos(folder: Path) -> memwal.Table:
    uri = str(folder / "photos.lance")
    base = lance.write_dataset(_photos(range(600)), uri)
    base.create_index("vector", "IVF_PQ", name="vector_idx", num_partitions=2, num_sub_vectors=4)
    return memwal.enable(
        uri, primary_key="id", region_spec="unsharded", maintained_indexes=["vector_idx"]
    )


@given
def photo_that_no_index_holds(folder: Path) -> None:
    """The table ``photos.lance``, where the vector of photo 7 is too long for ``vector_idx``."""
    table = _indexed_photos(folder)
    table.upsert({"id": 7, "vector": [1e20] * 8})
    table.merge()
    table.build_indexes()


@given
def photos_in_migration(folder: Path) -> None:
    """The table ``photos.lance``, whose ``vector_idx`` is migrated: started, with generations
    that carry the old index alone and ones that are not merged."""
    table = _indexed_photos(folder)
    table.upsert(_photos(range(600, 700)))
    IndexMigration(table.location, "vector_idx").start(num_partitions=3)
    table.upsert(_photos(range(700, 720)))
