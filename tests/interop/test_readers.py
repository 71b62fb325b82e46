"""Whatever happens to a table: every query is that of one plain table, and LanceDB's own.

Writes, flushes, merges of which some die half-way or are Lance's own, index builds, collections
and takeovers; after each of them scans, counts, lookups, and searches by vector, text and both.
"""

import itertools
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from support.data.merging import Merge
from support.data.sampled import drawn, every
from support.faults.lives import DIMENSION, DIVISIONS, KEYS, STEPS, Life
from support.stores.faulty_store import FaultyStores

import memwal


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    FaultyStores(monkeypatch, durable=False)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", every(7, DIVISIONS))
def test_every_query_after_every_step(tmp_path: Path, name: str) -> None:
    life = Life(tmp_path, DIVISIONS[name], f"{name}-2")
    life.play(8)
    assert life.pruned or life.division.spec == memwal.RegionSpec.unsharded(), (
        "no filter ruled a region out"
    )


@pytest.mark.parametrize(
    ("name", "seed"), drawn(1, itertools.product(DIVISIONS, range(10, 12)), seed="long lives")
)
def test_every_query_in_a_long_life(tmp_path: Path, name: str, seed: int) -> None:
    life = Life(tmp_path, DIVISIONS[name], f"{name}-{seed}")
    life.play(25)
    assert len(set(life.done)) >= len(STEPS) - 3


def test_an_index_of_the_filter_that_lags_behind(tmp_path: Path) -> None:
    """It covers less of the base table than the index that is searched."""
    life = Life(tmp_path, DIVISIONS["bucket"], "lag")
    for name in ("upsert", "flush", "merge", "build_indexes", "upsert", "flush", "merge"):
        life.step(name)
    for number in range(7):
        found = life.table.search([0.0] * DIMENSION, k=KEYS, filter=f"n = {number}").to_table()
        wanted = [key for key, row in life.flushed.items() if row["n"] == number and row["v"]]
        assert sorted(found["id"].to_pylist()) == sorted(wanted)
    life.writer.abort()


def test_every_query_of_the_past(tmp_path: Path) -> None:
    """A version and a tag answer as the table did then, whatever happens to it later."""
    life = Life(tmp_path, DIVISIONS["bucket"], "past")
    for name in ("upsert", "flush", "merge", "upsert", "flush"):
        life.step(name)
    base = life.table.base()
    base.dataset.tags.create("then", base.version)
    then = {row["id"]: row for row in base.dataset.to_table().to_pylist()}
    for name in ("delete", "upsert", "flush", "half_merge", "merge", "build_indexes", "collect"):
        life.step(name)
        for version in (base.version, "then"):
            life.check_past(version, then)
    life.writer.abort()


def test_an_index_that_lance_names_and_has_not_made(tmp_path: Path, merge: Merge) -> None:
    """A table of fewer rows than a quantizer is trained on gets the name of an index only."""
    rows = pa.table(
        {
            "id": range(40),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(range(160), pa.float32()), 4),
        },
        schema=pa.schema(
            [pa.field("id", pa.int64(), nullable=False), ("v", pa.list_(pa.float32(), 4))]
        ),
    )
    uri = str(tmp_path / "small")
    lance.write_dataset(rows.slice(0, 30), uri).create_index("v", "IVF_PQ", num_sub_vectors=2)
    table = memwal.enable(
        uri, primary_key=["id"], region_spec="bucket:id:2", maintained_indexes=["v_idx"]
    )
    with table.writer() as writer:
        writer.upsert(rows.slice(20, 20))
        for reads in (writer, table):
            writer.flush()
            found = reads.search([0.0] * 4, k=40).to_table()
            assert sorted(found["id"].to_pylist()) == list(range(40))
    merge(table)
    assert table.search([0.0] * 4, k=3).to_table()["id"].to_pylist() == [0, 1, 2]
