"""Writers start from the settings of their table, whoever stored them."""

import math
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from support.data.tables import SCHEMA, MakeTable, rows
from support.oracles import native

import memwal
from memwal.errors import InvalidInputError
from memwal.writer.region_writer.options import (
    WriterOptions,
    WriterSettings,
    read_writer_defaults,
    write_writer_defaults,
)

EVERY = WriterOptions(
    durable=False,
    indexed=True,
    max_memtable_rows=3,
    max_memtable_batches=4,
    max_memtable_bytes=5_000,
    max_memtable_age=6.5,
    max_sealed_memtables=7,
    backpressure_timeout=timedelta(seconds=8),
    max_entry_bytes=9,
    buffer_bytes=10,
    buffer_writes=11,
    buffer_interval=1.2,
    max_buffered_bytes=13,
    epoch_check_interval=0,
    flush_attempts=15,
    release_idle_after=math.inf,
)


class TestStoredDefaults:
    def test_every_option_of_a_table_is_read_as_it_was_stored(self) -> None:
        read = read_writer_defaults(write_writer_defaults(EVERY))

        assert WriterSettings.of(EVERY, {}) == WriterSettings(**read)

    def test_names_and_units_of_lance(self) -> None:
        stored = write_writer_defaults(
            WriterOptions(max_memtable_bytes=1024, buffer_interval=0.2, durable=True)
        )

        assert stored == {
            "durable_write": "true",
            "max_memtable_size": "1024",
            "max_wal_flush_interval_ms": "200",
        }

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("max_memtable_rows", "many"),
            ("max_memtable_rows", "0"),
            ("durable_write", "maybe"),
            ("memwal.max_memtable_age_ms", "-1"),
            ("memwal.max_memtable_age_ms", "nan"),
        ],
    )
    def test_a_value_that_is_not_valid_keeps_no_writer_away(self, name: str, value: str) -> None:
        assert read_writer_defaults({name: value, "max_memtable_batches": "9"}) == {
            "max_memtable_batches": 9
        }

    def test_options_of_a_writer_go_first(self) -> None:
        settings = WriterSettings.of(
            WriterOptions(max_memtable_rows=5), write_writer_defaults(EVERY)
        )

        assert (settings.max_memtable_rows, settings.max_memtable_batches) == (5, 4)


class TestTable:
    def test_sets_changes_and_resets(self, make_table: MakeTable) -> None:
        table = make_table()
        assert table.writer_defaults == {}

        table.set_writer_defaults(max_memtable_age=timedelta(minutes=5), max_memtable_rows=10)
        table.set_writer_defaults(max_memtable_rows=20)
        assert table.writer_defaults == {"max_memtable_age": 300.0, "max_memtable_rows": 20}

        table.reset_writer_defaults("max_memtable_age")
        assert memwal.open(table.uri).writer_defaults == {"max_memtable_rows": 20}

    def test_refuses_what_belongs_to_a_producer(self, make_table: MakeTable) -> None:
        table = make_table()

        with pytest.raises(InvalidInputError):
            table.set_writer_defaults(fsync=False)
        with pytest.raises(InvalidInputError):
            table.set_writer_defaults()
        with pytest.raises(InvalidInputError):
            table.reset_writer_defaults("fsync")
        assert table.writer_defaults == {}

    def test_names_of_others_stay(self, make_table: MakeTable) -> None:
        table = make_table()
        table.set_writer_defaults(max_memtable_rows=7)
        shard = native.writer(table)
        native.put(shard, table, rows({1: 1}))
        shard.close()

        table.set_writer_defaults(indexed=True)

        stored = table.base().details.writer_config_defaults
        assert stored == {"max_memtable_rows": "7", "memwal.indexed": "true"}

    def test_every_writer_starts_from_them(self, make_table: MakeTable) -> None:
        table = make_table()
        table.set_writer_defaults(max_memtable_rows=2)

        with table.writer() as writer:
            for number in range(4):
                writer.upsert(rows({number: number}))
            writer.flush()

        assert [region.current_generation for region in table.status().regions] == [3]

    def test_those_that_lance_wrote(self, tmp_path: Path) -> None:
        path = str(tmp_path / "table.lance")
        key = SCHEMA.field("id").with_metadata({"lance-schema:unenforced-primary-key": "true"})
        dataset = lance.write_dataset(pa.schema([key, *list(SCHEMA)[1:]]).empty_table(), path)
        dataset.initialize_mem_wal(unsharded=True, max_memtable_rows=50, durable_write=False)
        table = memwal.open(path)

        with table.writer() as writer:
            assert not writer.settings.durable
            assert writer.settings.max_memtable_rows == 50

        assert table.writer_defaults["max_memtable_rows"] == 50
