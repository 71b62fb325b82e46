"""The whole life of a table on every store, with Lance's own writer and reader taking part."""

import multiprocessing
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from stores.conftest import Place
from support.oracles import native

import memwal
from memwal.errors import RegionFencedError
from memwal.jobs.table.store_check import CheckState, diagnose
from memwal.jobs.verify import verify
from memwal.storage.location import TableLocation
from memwal.storage.object_store import create_settled
from memwal.storage.open import check_put_if_absent

pytestmark = pytest.mark.slow

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), 4)),
    ]
)


def rows(ids: Sequence[int], word: str) -> pa.Table:
    vectors = np.asarray([[n, n + 1, n + 2, n + 3] for n in ids], np.float32)
    return pa.table(
        {
            "id": list(ids),
            "text": [f"{word} {n}" for n in ids],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 4),
        },
        schema=SCHEMA,
    )


def texts(found: pa.Table) -> dict[int, str]:
    assert len(set(found["id"].to_pylist())) == found.num_rows
    return dict(zip(found["id"].to_pylist(), found["text"].to_pylist(), strict=True))


def test_the_whole_life_of_a_table(place: Place) -> None:
    uri, options = place.new_uri(), place.options
    base = lance.write_dataset(rows(range(100), "base"), uri, storage_options=options)
    base.create_scalar_index("id", "BTREE")
    base.create_scalar_index("text", "INVERTED")
    table = memwal.enable(
        uri,
        region_spec="unsharded",
        primary_key="id",
        maintained_indexes=["id_idx", "text_idx"],
        storage_options=options,
    )
    expected = texts(base.to_table())

    first = table.writer()
    first.upsert(rows(range(90, 120), "first"))
    first.flush()
    first.delete(pa.array([0, 95]))
    expected |= {n: f"first {n}" for n in range(90, 120)}
    expected = {n: text for n, text in expected.items() if n not in (0, 95)}
    assert texts(first.scan().to_table()) == expected

    with table.writer() as second:
        second.claim()
        second.upsert(rows([1], "second"))
        expected[1] = "second 1"
        with pytest.raises(RegionFencedError):
            first.upsert(rows([2], "fenced"))
        assert texts(second.scan().to_table()) == expected
    first.abort()

    shard = native.writer(table)
    native.put(shard, table, rows([3], "native"))
    shard.delete(pa.table({"id": pa.array([4])}))
    shard.close()
    expected[3] = "native 3"
    del expected[4]
    assert {row["id"]: row["text"] for row in native.everything(table)} == expected

    assert table.checkpoint().warnings == ()
    assert table.build_snapshot().commits == 1
    assert table.status().backlog_generations == 0
    native.collect_all(table)
    assert verify(table.location).findings == ()
    dataset = lance.dataset(uri, storage_options=options)
    assert texts(dataset.to_table()) == expected
    assert texts(table.scan().to_table()) == expected
    assert texts(table.lookup(pa.array([1, 3, 4])).to_table()) == {1: "second 1", 3: "native 3"}
    assert table.search_text("native", column="text", k=5).to_table()["id"].to_pylist() == [3]
    nearest = table.search([7.0, 8.0, 9.0, 10.0], column="vector", k=1).to_table()
    assert nearest["id"].to_pylist() == [7]
    assert dataset.scanner(full_text_query="first", columns=["id"]).to_table().num_rows == 29


def _creators(location: TableLocation, names: Sequence[str], me: bytes, out: Any) -> None:
    won = [name for name in names if create_settled(location.store, name, me) is None]
    out.put((me, won))


def test_many_processes_create_the_same_names(place: Place) -> None:
    location = TableLocation(place.new_uri(), place.options)
    check_put_if_absent(location.store)
    names = [f"race/{number}" for number in range(40)]
    spawn = multiprocessing.get_context("spawn")
    out = spawn.Queue()
    racers = [
        spawn.Process(target=_creators, args=(location, names, f"racer {n}".encode(), out))
        for n in range(4)
    ]
    for racer in racers:
        racer.start()
    won = dict(out.get(timeout=120) for _ in racers)
    for racer in racers:
        racer.join(timeout=60)

    winners = [(name, me) for me, names_won in won.items() for name in names_won]
    assert sorted(name for name, _ in winners) == sorted(names), "each name has one creator"
    assert all(location.store.get(name) == me for name, me in winners)
    location.store.delete_folder("race")


def _append(location: TableLocation, me: int, out: Any) -> None:
    acknowledged = []
    table = memwal.open(location.uri, storage_options=location.storage_options)
    for turn in range(3):
        # Whoever is fenced comes back with a new writer.
        with suppress(RegionFencedError), table.writer() as writer:
            for n in range(5):
                key = 1000 * me + 10 * turn + n
                writer.upsert(rows([key], f"writer {me}"))
                acknowledged.append(key)
    out.put(acknowledged)


def test_processes_that_fence_each_other_lose_nothing(place: Place) -> None:
    table = memwal.create(place.new_uri(), SCHEMA, primary_key="id", storage_options=place.options)
    spawn = multiprocessing.get_context("spawn")
    out = spawn.Queue()
    writers = [spawn.Process(target=_append, args=(table.location, me, out)) for me in range(3)]
    for writer in writers:
        writer.start()
    acknowledged = {key for _ in writers for key in out.get(timeout=200)}
    for writer in writers:
        writer.join(timeout=60)

    with table.writer() as last:
        last.claim()
    assert acknowledged
    assert acknowledged <= set(table.scan(columns=["id"]).to_table()["id"].to_pylist())
    assert table.checkpoint().warnings == ()
    assert verify(table.location).findings == ()


def test_the_doctor_finds_it_fit(place: Place) -> None:
    found = diagnose(TableLocation(place.new_uri(), place.options))

    assert [check for check in found.checks if check.state is CheckState.ERROR] == []
    assert {"put-if-absent", "lance", "delete"} <= {
        check.name for check in found.checks if check.state is CheckState.OK
    }
