"""Situations that pages take for granted: ``<!-- given: flights -->``.

Each makes its tables, and damages them, in the folder that it is given, and writes nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import memwal
from memwal.catalog import Catalog

GIVEN: dict[str, Callable[[Path], None]] = {}


def given(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Give a situation the name that pages use."""
    GIVEN[make.__name__.replace("_", " ")] = make
    return make


def _flights(folder: Path) -> memwal.Table:
    """A table of two regions with two generations each: flights 0 to 99, of which the second
    generations have every tenth again, later."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("delay", pa.float32())]
    )
    table = memwal.create(
        str(folder / "flights.lance"),
        schema,
        primary_key=["id"],
        region_spec=memwal.RegionSpec.bucket("id", 2),
        maintained_indexes=["id_idx"],
    )
    with table.writer() as writer:
        for step in (1, 10):
            ids = list(range(0, 100, step))
            writer.upsert(
                pa.table(
                    {"id": ids, "city": ["EWR"] * len(ids), "delay": [float(step)] * len(ids)},
                    schema=schema,
                )
            )
            writer.flush()
    return table


@given
def flights(folder: Path) -> None:
    """The table ``flights.lance`` with a backlog, registered as ``flights`` in the catalog that
    the command line takes by itself."""
    table = _flights(folder)
    catalog = Catalog(f"sqlite:///{folder}/.local/share/memwal/catalog.db")
    catalog.migrate()
    catalog.register("flights", uri=table.uri)
    catalog.close()


@given
def orders(folder: Path) -> None:
    """The table ``orders.lance`` with one flushed generation, in no catalog."""
    table = memwal.create(
        str(folder / "orders.lance"),
        pa.schema([("id", pa.int64()), ("state", pa.string())]),
        primary_key=["id"],
        region_spec=memwal.RegionSpec.unsharded(),
    )
    with table.writer() as writer:
        writer.upsert(pa.table({"id": range(100), "state": ["new"] * 100}))
