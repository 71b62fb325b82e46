"""Maintaining more indexes of a table that is in use, and fewer."""

from dataclasses import replace

import lance
import pytest
from support.data.tables import base_state, folder, generations, manifest, rows, state
from support.faults.collecting import collect
from support.oracles import native

import memwal
from memwal.base_table.commit import update_details
from memwal.base_table.snapshot import open_dataset
from memwal.errors import InvalidInputError, TableSetupError
from memwal.format.paths import generation_dir
from memwal.jobs.verify.repair import repair

pytestmark = pytest.mark.usefixtures("of_few_rows")

HOUR = 3600.0


def carried(table: memwal.Table) -> list[set[str]]:
    """Names of the indexes of each flushed generation."""
    return [
        {
            index.name
            for index in open_dataset(
                table.location, generation_dir(found.region_id, flushed.path)
            ).describe_indices()
        }
        for found in [manifest(table)]
        for flushed in found.flushed
    ]


def indexed(table: memwal.Table) -> None:
    dataset = table.base().dataset
    dataset.create_scalar_index("n", "BTREE", name="n_idx")
    dataset.create_scalar_index("text", "INVERTED", name="text_idx")


def test_an_index_that_joins(table: memwal.Table) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 1}))
        writer.flush()
        table.merge()
        indexed(table)
        writer.upsert(rows({2: 2, 3: 2}))
        writer.flush()

        assert table.choose_indexes(add=["n_idx", "text_idx"]) == ["n_idx", "text_idx"]

        # The open writer notices; generations from before go without.
        writer.upsert(rows({3: 3, 4: 3}))
        writer.flush()
    assert carried(table) == [set(), set(), {"n_idx", "text_idx"}]
    assert state(table.scan(filter="n = 3").to_table()) == {3: 3, 4: 3}
    found = table.search_text('"2=2"', column="text", columns=["id"]).to_table()
    assert found["id"].to_pylist()[0] == 2

    table.merge()
    collect(table, 2 * HOUR)
    assert generations(table), "no index has caught up with the last merge"
    table.build_indexes()
    assert {lag.name: lag.rows for lag in table.status().indexes} == {"n_idx": 0, "text_idx": 0}
    collect(table, 2 * HOUR)
    collect(table, 4 * HOUR)
    assert generations(table) == []
    assert list(folder(table).glob("_mem_wal/*/*_gen_*")) == []
    assert base_state(table) == {1: 1, 2: 2, 3: 3, 4: 3}
    assert table.verify().clean


def test_an_index_that_leaves_holds_nothing_back(table: memwal.Table) -> None:
    indexed(table)
    table.choose_indexes(add=["n_idx", "text_idx"])
    table.upsert(rows({1: 1}))
    table.merge()
    table.build_indexes(indexes=["n_idx"])

    assert table.choose_indexes(remove=["text_idx"]) == ["n_idx"]

    collect(table, 2 * HOUR)
    assert generations(table) == []
    table.upsert(rows({2: 2}))
    assert carried(table) == [{"n_idx"}]
    # It comes back and knows nothing.
    assert table.choose_indexes(add=["text_idx"]) == ["n_idx", "text_idx"]
    (lag,) = [lag for lag in table.status().indexes if lag.name == "text_idx"]
    assert lag.generations > 0


def test_what_is_no_change_makes_no_version(table: memwal.Table) -> None:
    indexed(table)
    table.choose_indexes(add=["n_idx"])
    version = table.base().version

    assert table.choose_indexes(add=["n_idx"], remove=["text_idx"]) == ["n_idx"]
    assert table.choose_indexes() == ["n_idx"]
    assert table.base().version == version


def test_what_cannot_be_is_refused(table: memwal.Table) -> None:
    indexed(table)
    with pytest.raises(InvalidInputError, match="none_idx"):
        table.choose_indexes(add=["none_idx"])
    with pytest.raises(InvalidInputError, match="n_idx"):
        table.choose_indexes(add=["n_idx"], remove=["n_idx"])


@pytest.fixture
def bitmapped(table: memwal.Table) -> memwal.Table:
    """A table with a maintained index, and one of a kind that Lance cannot maintain."""
    table.base().dataset.create_scalar_index("n", "BITMAP", name="bitmap")
    table.base().dataset.create_scalar_index("text", "BTREE", name="text_idx")
    table.choose_indexes(add=["text_idx"])
    return table


def test_a_kind_that_lance_cannot_maintain_is_caught_up_unnamed(bitmapped: memwal.Table) -> None:
    table = bitmapped
    with pytest.raises(InvalidInputError, match="bitmap"):
        table.choose_indexes(add=["bitmap"])
    assert table.base().details.maintained_indexes == ("text_idx",)
    for number in range(2):
        table.upsert(rows({number: 7}))
        table.merge()
    lags = {lag.name: lag for lag in table.status().indexes}
    assert (lags["bitmap"].maintained, lags["bitmap"].generations, lags["bitmap"].rows) == (
        False,
        0,
        2,
    )
    assert (lags["text_idx"].maintained, lags["text_idx"].generations) == (True, 2)

    assert table.build_indexes(maintained_only=True).metrics["indexes"] == 1
    assert {lag.name: lag.rows for lag in table.status().indexes} == {"text_idx": 0, "bitmap": 2}
    collect(table, 2 * HOUR)
    assert generations(table) == [], "an index that is not maintained holds nothing back"
    assert table.build_indexes().metrics["indexes"] == 1
    assert {lag.name: lag.rows for lag in table.status().indexes} == {"text_idx": 0, "bitmap": 0}
    version = table.base().version
    assert table.build_indexes().commits == 0
    assert table.base().version == version
    assert state(table.scan(filter="n = 7").to_table()) == {0: 7, 1: 7}


def test_a_kind_that_lance_cannot_maintain_is_taken_out_by_a_repair(
    bitmapped: memwal.Table,
) -> None:
    table = bitmapped
    update_details(
        table.location,
        lambda base: replace(base.details, maintained_indexes=("text_idx", "bitmap")),
    )
    with pytest.raises(OSError, match="bitmap"):
        native.writer(table)
    report = table.verify()
    assert [(it.code, it.object) for it in report.findings] == [("index-unmaintainable", "bitmap")]
    (action,) = repair(table.location, report, dry_run=False)
    assert action.state == "done"
    assert table.base().details.maintained_indexes == ("text_idx",)
    assert table.verify().clean
    shard = native.writer(table)
    native.put(shard, table, rows({5: 5}))
    shard.close()
    assert state(table) == {5: 5}


def test_a_table_that_maintains_all(table: memwal.Table) -> None:
    lance.write_dataset(rows({1: 1}), f"{table.uri}-all")
    everything = memwal.enable(
        f"{table.uri}-all", primary_key=["id"], region_spec="unsharded", maintained_indexes=None
    )
    indexed(everything)

    assert sorted(everything.choose_indexes(add=["n_idx"])) == ["n_idx", "text_idx"]
    with pytest.raises(InvalidInputError):
        everything.choose_indexes(remove=["n_idx"])


def test_a_table_that_maintains_all_that_lance_can(table: memwal.Table) -> None:
    uri = f"{table.uri}-all"
    lance.write_dataset(rows({1: 1}), uri)
    dataset = lance.dataset(uri)
    dataset.create_scalar_index("n", "BTREE", name="n_idx")
    dataset.create_scalar_index("text", "BITMAP", name="text_idx")
    everything = memwal.enable(
        uri, primary_key=["id"], region_spec="unsharded", maintained_indexes=None
    )
    shard = native.writer(everything)
    native.put(shard, everything, rows({2: 2}))
    shard.close()
    everything.upsert(rows({3: 3}))
    assert carried(everything) == [{"n_idx"}, {"n_idx", "text_idx"}]
    everything.merge()
    lags = {lag.name: lag for lag in everything.status().indexes}
    assert lags["n_idx"].maintained
    assert not lags["text_idx"].maintained

    everything.build_indexes(indexes=["n_idx"])
    lags = {lag.name: lag for lag in everything.status().indexes}
    assert (lags["n_idx"].rows, lags["text_idx"].rows) == (0, 2)
    # What the other index lacks is in the base table: it holds no generation.
    (backlog,) = everything.status().regions
    assert backlog.reclaimable_generations == backlog.retained_generations > 0
    everything.build_indexes()
    assert [lag.rows for lag in everything.status().indexes] == [0, 0]
    assert everything.verify().clean


def test_a_table_without_mem_wal_is_refused(tmp_path) -> None:
    lance.write_dataset(rows({1: 1}), str(tmp_path / "plain"))
    with pytest.raises(TableSetupError):
        memwal.Table(memwal.table.TableLocation(str(tmp_path / "plain"))).choose_indexes()
