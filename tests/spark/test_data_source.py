"""Tables as data frames on a real Spark session, against the table's own scan."""

import datetime as dt
import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from support.data.tables import MakeTable, keys, rows, state
from support.faults.collecting import collect

import memwal
import memwal.spark
from memwal.spark.source.read_tags import SESSION
from memwal.spark.version_compat import FEATURES, ROWS_WITHOUT_COLUMNS

SECRET = "tell-nobody-9876543210"


@pytest.fixture(autouse=True)
def registered(spark: Any) -> None:
    memwal.spark.register(spark)


def load(spark: Any, table: memwal.Table | str, **options: object) -> Any:
    uri = table if isinstance(table, str) else table.uri
    reader = spark.read.format("memwal")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(uri)


def shown(frame: Any) -> dict[int, int | None]:
    return state(frame.toArrow())


def ordered(table: pa.Table, key: list[str]) -> list[dict[str, Any]]:
    return table.sort_by([(name, "ascending") for name in key]).to_pylist()


class TestRows:
    def test_what_is_flushed_is_read(self, spark, make_backlog):
        table, expected = make_backlog(3)
        assert table.base().dataset.count_rows() == 0
        assert shown(load(spark, table)) == expected

    def test_newest_rows_over_base_and_generations(self, spark, make_backlog):
        table, expected = make_backlog(2)
        table.merge()
        with table.writer() as writer:
            writer.upsert(rows({5: 100, 500: 1}))
            writer.delete(keys(7))
            writer.flush()
            writer.upsert(rows({5: 101, 501: 2}))
            writer.delete(keys(500))
        expected |= {5: 101, 501: 2}
        del expected[7]
        frame = load(spark, table, partitions=3)
        assert shown(frame) == expected == state(table)
        assert frame.count() == len(expected)

    def test_an_empty_table(self, spark, table):
        frame = load(spark, table)
        assert frame.columns == ["id", "n", "text"]
        assert frame.collect() == []
        assert frame.rdd.getNumPartitions() == 1

    def test_a_table_without_mem_wal_or_key(self, spark, tmp_path):
        uri = str(tmp_path / "plain.lance")
        for first in (0, 10, 20):
            lance.write_dataset(pa.table({"a": range(first, first + 10)}), uri, mode="append")
        frame = load(spark, uri, partitions=2)
        assert frame.rdd.getNumPartitions() == 2
        assert sorted(row.a for row in frame.filter("a >= 5").collect()) == list(range(5, 30))

    def test_no_table(self, spark, tmp_path):
        with pytest.raises(AnalysisException, match=str(tmp_path / "none")):
            load(spark, str(tmp_path / "none"))


class TestSnapshot:
    def test_a_data_frame_stays_where_it_is(self, spark, make_backlog):
        table, expected = make_backlog(2)
        frame = load(spark, table, partitions=4)
        table.upsert(rows({1: 7}))
        table.merge()
        table.collect_garbage(dry_run=False)
        assert shown(frame) == expected
        table.upsert(rows({2: 7}))
        assert shown(frame) == expected
        assert shown(load(spark, table)) == expected | {1: 7, 2: 7}

    def test_a_table_joined_with_itself(self, spark, make_backlog):
        table, expected = make_backlog(2)
        frame = load(spark, table, partitions=3)
        left, right = frame.filter("id < 10").alias("l"), frame.filter("id > 4").alias("r")
        joined = left.join(right, "id").select("id", "l.n", "r.text")
        assert shown(joined) == {key: n for key, n in expected.items() if 4 < key < 10}
        assert frame.filter("id = 3").union(frame.filter("id = 5")).count() == 2

    def test_what_was_collected_under_a_protection(self, spark, make_backlog):
        table, expected = make_backlog(2)
        frame = load(spark, table, partitions=3, protect_seconds=864_000)
        load(spark, table, columns="id", protect_seconds=864_000)
        (tag,) = table.base().dataset.tags.list()
        assert tag.endswith(SESSION), "one for the session"
        table.upsert(rows({5: 7}))
        table.merge()
        table.build_indexes()
        for seconds in (86_400, 172_800):
            collect(table, seconds)
        assert shown(frame) == expected
        assert memwal.spark.release(table.uri) == 1
        assert table.base().dataset.tags.list() == {}

    def test_a_version_and_a_tag(self, spark, make_backlog):
        table, expected = make_backlog(1)
        table.merge()
        version = table.base().version
        table.base().dataset.tags.create("monday", version)
        table.upsert(rows({1: 7}))
        table.merge()
        table.upsert(rows({2: 8}))
        assert shown(load(spark, table)) == expected | {1: 7, 2: 8}
        assert shown(load(spark, table, version=version)) == expected
        assert shown(load(spark, table, tag="monday")) == expected
        # The generation that is not merged is left out.
        assert shown(load(spark, table, version=table.base().version)) == expected | {1: 7}

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"version": 99}, "99"),
            ({"tag": "sunday"}, "'sunday'"),
            ({"tag": "sunday", "version": 1}, "version"),
        ],
    )
    def test_no_such_snapshot(self, spark, table, options, named):
        with pytest.raises(AnalysisException, match=named):
            load(spark, table, **options)


class TestColumns:
    def test_chosen_in_order(self, spark, make_backlog):
        table, expected = make_backlog(1)
        frame = load(spark, table, columns='["text", "id"]')
        assert frame.columns == ["text", "id"]
        assert {row.id: row.text for row in frame.collect()} == {
            key: f"{key}={n}" for key, n in expected.items()
        }

    @pytest.mark.skipif(not ROWS_WITHOUT_COLUMNS.here, reason="this Spark loses such rows")
    def test_none_at_all(self, spark, make_backlog):
        table, expected = make_backlog(2)
        assert load(spark, table, columns="").count() == len(expected)
        table.merge()
        counted = load(spark, table, columns="", partitions=2)
        assert counted.columns == []
        assert counted.count() == len(expected)
        assert load(spark, table, columns="", filter="id < 10").count() == 8

    def test_a_schema_of_the_callers(self, spark, make_backlog):
        table, expected = make_backlog(1)
        reader = spark.read.format("memwal").schema("n bigint, id bigint, text string")
        frame = reader.load(table.uri)
        assert frame.columns == ["n", "id", "text"]
        assert shown(frame) == expected

    @pytest.mark.parametrize(
        ("schema", "named"),
        [("id int", "'id'"), ("n bigint not null", "'n'"), ("other int", "other")],
    )
    def test_another_schema(self, spark, table, schema, named):
        with pytest.raises(PySparkException, match=named):
            spark.read.format("memwal").schema(schema).load(table.uri).collect()

    def test_a_schema_and_columns(self, spark, table):
        reader = spark.read.format("memwal").schema("id bigint").option("columns", "id")
        with pytest.raises(PySparkException, match="columns"):
            reader.load(table.uri).collect()

    def test_an_unknown_column(self, spark, table):
        with pytest.raises(AnalysisException, match="other"):
            load(spark, table, columns="id,other")


class TestFilter:
    def test_outdated_rows_do_not_shine_through(self, spark, table):
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 1, 3: 1}))
            writer.flush()
            table.merge()
            writer.upsert(rows({1: 2}))
            writer.delete(keys(2))
            writer.flush()
            writer.upsert(rows({4: 2}))
            writer.flush()
            writer.upsert(rows({4: 3}))
        for predicate, expected in [
            ("n = 1", {3: 1}),
            ("n = 2", {1: 2}),
            ("n = 3 or text = '1=2'", {4: 3, 1: 2}),
            ("n > 9", {}),
        ]:
            assert shown(load(spark, table, filter=predicate, partitions=2)) == expected
        # What Spark itself filters is the same for every predicate.
        assert shown(load(spark, table).filter("n = 1")) == {3: 1}

    @pytest.mark.parametrize(
        "predicate",
        ["nothing = 1", "n =", pytest.param("n = 1 n = 2", marks=pytest.mark.slow), "n + 1"],
    )
    def test_a_wrong_one(self, spark, table, predicate):
        with pytest.raises(AnalysisException, match="filter"):
            load(spark, table, filter=predicate)


class TestTypes:
    SCHEMA = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("u8", pa.uint8()),
            pa.field("u16", pa.uint16()),
            pa.field("u32", pa.uint32()),
            pa.field("u64", pa.uint64()),
            pa.field("i8", pa.int8()),
            pa.field("half", pa.float16()),
            pa.field("real", pa.float64()),
            pa.field("yes", pa.bool_()),
            pa.field("price", pa.decimal128(12, 3)),
            pa.field("day", pa.date32()),
            pa.field("zoned", pa.timestamp("ms", "Europe/Berlin")),
            pa.field("local", pa.timestamp("us")),
            pa.field("nano", pa.timestamp("ns", "UTC")),
            pa.field("lasted", pa.duration("ms")),
            pa.field("long_text", pa.large_string()),
            pa.field("code", pa.dictionary(pa.int8(), pa.string())),
            pa.field("blob", pa.large_binary()),
            pa.field("digest", pa.binary(4)),
            pa.field("vector", pa.list_(pa.float32(), 2)),
            pa.field("tags", pa.list_(pa.field("item", pa.string()))),
            pa.field(
                "place", pa.struct([("name", pa.string()), ("at", pa.list_(pa.float64(), 2))])
            ),
        ]
    )
    MOMENT = dt.datetime(2024, 3, 31, 1, 30, tzinfo=dt.UTC)
    ROW = {  # noqa: RUF012
        "id": 1,
        "u8": 255,
        "u16": 65_535,
        "u32": 2**32 - 1,
        "u64": 2**64 - 1,
        "i8": -128,
        "half": 0.5,
        "real": 1e300,
        "yes": True,
        "price": Decimal("123456789.125"),
        "day": dt.date(1969, 12, 31),
        "zoned": MOMENT,
        "local": dt.datetime(2024, 3, 31, 2, 30, 0, 1),
        "nano": MOMENT,
        "lasted": timedelta(days=-1, milliseconds=5),
        "long_text": "ß'\"",
        "code": "b",
        "blob": b"\x00\xff",
        "digest": b"abcd",
        "vector": [1.5, -2.0],
        "tags": ["a", None],
        "place": {"name": "x", "at": [1.0, 2.0]},
    }

    @pytest.mark.parametrize(
        ("merged", "zone"),
        [
            (False, "America/New_York"),
            (True, "UTC"),
            pytest.param(False, "UTC", marks=pytest.mark.slow),
            pytest.param(True, "America/New_York", marks=pytest.mark.slow),
        ],
    )
    def test_values(self, spark, make_table, merged, zone):
        table = make_table(self.SCHEMA)
        nothing = dict.fromkeys(self.SCHEMA.names) | {"id": 2}
        table.upsert(pa.Table.from_pylist([self.ROW, nothing], schema=self.SCHEMA))
        if merged:
            table.merge()
        before = spark.conf.get("spark.sql.session.timeZone")
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            frame = load(spark, table)
            found = ordered(frame.toArrow(), ["id"])
            noon = frame.filter("zoned = timestamp '2024-03-31 01:30:00 UTC'").count()
        finally:
            spark.conf.set("spark.sql.session.timeZone", before)
        assert found == [self.ROW | {"u64": Decimal(2**64 - 1)}, nothing]
        assert noon == 1
        assert dict(frame.dtypes) == {
            "id": "bigint",
            "u8": "smallint",
            "u16": "int",
            "u32": "bigint",
            "u64": "decimal(20,0)",
            "i8": "tinyint",
            "half": "float",
            "real": "double",
            "yes": "boolean",
            "price": "decimal(12,3)",
            "day": "date",
            "zoned": "timestamp",
            "local": "timestamp_ntz",
            "nano": "timestamp",
            "lasted": "interval day to second",
            "long_text": "string",
            "code": "string",
            "blob": "binary",
            "digest": "binary",
            "vector": "array<float>",
            "tags": "array<string>",
            "place": "struct<name:string,at:array<double>>",
        }
        assert [field.nullable for field in frame.schema][:2] == [False, True]

    def test_nanoseconds(self, spark, make_table):
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("ns"))])
        table = make_table(schema)
        table.upsert(pa.table({"id": [1], "at": pa.array([1_234], pa.timestamp("ns"))}))
        with pytest.raises(PySparkException, match="truncate_nanoseconds"):
            load(spark, table).collect()
        (row,) = load(spark, table, truncate_nanoseconds="true").collect()
        assert row.at == dt.datetime(1970, 1, 1, 0, 0, 0, 1)

    def test_what_spark_has_no_type_for(self, spark, make_table):
        schema = pa.schema(
            [
                pa.field("id", pa.int64(), nullable=False),
                pa.field("clock", pa.time64("us")),
                pa.field("huge", pa.decimal256(60, 2)),
            ]
        )
        table = make_table(schema)
        table.upsert(pa.Table.from_pylist([{"id": 1}], schema=schema))
        with pytest.raises(AnalysisException, match=r"'clock'.*'huge'"):
            load(spark, table)
        assert load(spark, table, omit_unsupported="true").columns == ["id"]
        assert load(spark, table, columns="id").count() == 1


class TestPartitions:
    def test_executors_share_the_work(self, spark, make_backlog):
        table, expected = make_backlog(3)
        table.merge(regions=table.region_ids()[:1])
        assert load(spark, table).rdd.getNumPartitions() == 1
        frame = load(spark, table, partitions=4)
        assert frame.rdd.getNumPartitions() == 4
        assert shown(frame) == expected
        # At least one fragment, and three regions, whose generations stay together.
        assert load(spark, table, target_partition_bytes=1).rdd.getNumPartitions() >= 4

    def test_regions(self, spark, make_backlog):
        table, expected = make_backlog(2)
        first, *others = map(str, table.region_ids())
        for _ in range(2):
            found = shown(load(spark, table, regions=first))
            rest = shown(load(spark, table, regions=",".join(others), columns="text,n,id"))
            assert 0 < len(found) < len(expected)
            assert found | rest == expected
            assert len(found) + len(rest) == len(expected)
            none = "" if ROWS_WITHOUT_COLUMNS.here else "id"
            counted = load(spark, table, regions=first, columns=none).count()
            assert counted == len(found)
            table.merge()


class TestSql:
    def test_a_view_by_its_options(self, spark, make_backlog):
        table, expected = make_backlog(1)
        spark.sql(
            "create or replace temporary view memwal_view using memwal "
            f"options (path '{table.uri}', columns 'id,n,text', filter 'id < 9')"
        )
        found = shown(spark.sql("select * from memwal_view"))
        assert found == {key: n for key, n in expected.items() if key < 9}


class TestSecrets:
    @pytest.mark.parametrize(
        "name",
        ["aws_secret_access_key", pytest.param("token", marks=pytest.mark.slow), "anything"],
    )
    def test_a_storage_option_is_refused(self, spark, table, shown_by_spark, name, capfd):
        reader = spark.read.format("memwal").option(name, SECRET)
        with pytest.raises(AnalysisException, match="storage_options_file") as caught:
            reader.load(table.uri)
        assert name in str(caught.value)
        # With a schema Spark asks only once there is a query.
        frame = reader.schema("id bigint").load(table.uri)
        with pytest.raises(PySparkException, match=name) as again:
            frame.collect()
        frame.explain(mode="extended")
        assert SECRET not in f"{caught.value} {again.value} {shown_by_spark()} {capfd.readouterr()}"

    def test_options_reach_executors_and_nobody_else(
        self, spark, shown_by_spark, emulator, tmp_path, capfd
    ):
        uri = f"s3://{emulator.create_bucket()}/table"
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
        options = emulator.storage_options | {"aws_session_token": SECRET}
        table = memwal.create(
            uri, schema, primary_key=["id"], region_spec="bucket:id:2", storage_options=options
        )
        with table.writer() as writer:
            writer.upsert(pa.table({"id": range(50), "n": range(50)}, schema=schema))
            writer.flush()
            table.merge()
            writer.upsert(pa.table({"id": range(5), "n": [9] * 5}, schema=schema))
        file = tmp_path / "options.json"
        file.write_text(json.dumps(options))
        frames = [load(spark, uri, storage_options_file=file, partitions=3)]
        memwal.spark.register(spark, storage_options=options)
        frames.append(load(spark, uri, partitions=3))
        for frame in frames:
            assert frame.filter("n = 9").count() == 6
            frame.explain(mode="extended")
            frame.explain(mode="formatted")
        with pytest.raises(AnalysisException) as caught:
            load(spark, uri + "-none", storage_options_file=file)
        text = f"{shown_by_spark()} {caught.value} {capfd.readouterr()}"
        assert f"{uri}-none" in text
        assert "BatchScan" in text
        assert SECRET not in text
        assert emulator.storage_options["aws_secret_access_key"] not in text


def test_spark_mixes_pushed_filters_up(spark: Any) -> None:
    """Why the reader takes no filters from Spark: once this fails, it can."""
    if not hasattr(DataSourceReader, "pushFilters"):
        pytest.skip("this Spark pushes no filters")
    from pyspark.sql.datasource import EqualTo

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self.pushed: list[int] = []

        def pushFilters(self, filters: list[Any]) -> Any:
            for found in filters:
                if isinstance(found, EqualTo):
                    self.pushed.append(found.value)
                else:
                    yield found

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(None)]

        def read(self, partition: InputPartition) -> Any:
            yield from ((n,) for n in range(3) if all(n == value for value in self.pushed))

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "n bigint"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Numbers)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("numbers").load()
        assert frame.filter("n = 1").count() == 1
        assert frame.count() == 1, "of three"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_the_examples_of_the_guide(
    spark: Any, make_table: MakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import re

    if not all(feature.here for feature in FEATURES):
        pytest.skip("the guide shows what this Spark lacks")
    guide = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"spark": spark}
    for example in re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL):
        exec(compile(example, "docs/spark.md", "exec"), names)
    assert names["delays"].count() == 2
