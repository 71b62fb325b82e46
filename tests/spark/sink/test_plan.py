"""What a write is refused for, before any task runs."""

from pathlib import Path

import pytest
from support.data.tables import MakeTable

import memwal
from memwal.errors import InvalidInputError, TableSetupError
from memwal.spark.sink.options import WriteOptions, is_for_writes, parse_write_options
from memwal.spark.sink.plan import plan_write
from memwal.storage.location import TableLocation

COLUMNS = ["id", "n", "text"]


def check(table: memwal.Table, *columns: str, overwrite: bool = False, **options: str) -> None:
    parsed = parse_write_options({"path": table.uri} | options)
    plan_write(table.location, parsed, columns or COLUMNS, overwrite=overwrite)


def test_options() -> None:
    assert parse_write_options({"path": "t"}) == WriteOptions(uri="t")
    given = {
        "path": "t",
        "op_column": "op",
        "delete_ops": "D,gone",
        "sequence_by": "at",
        "partial": "False",
        "source": "s",
        "version": "0",
        "storage_options_file": "o.json",
        "checkpointlocation": "c",
        "queryname": "q",
    }
    assert parse_write_options(given) == WriteOptions(
        uri="t",
        op_column="op",
        delete_ops=("D", "gone"),
        sequence_by="at",
        source="s",
        version=0,
        storage_options_file=Path("o.json"),
    )
    assert is_for_writes(given)
    assert not is_for_writes({"path": "t", "version": "3"})


@pytest.mark.parametrize(
    "options",
    [
        {"source": "s", "version": "-1"},
        {"on_restart": "maybe"},
        {"partial": "maybe"},
        {"columns": "id"},
    ],
)
def test_options_that_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        parse_write_options({"path": "t"} | options)


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    uri = str(tmp_path / "nothing")
    with pytest.raises(TableSetupError):
        plan_write(TableLocation(uri, {}), WriteOptions(uri=uri), COLUMNS, overwrite=False)


def test_what_does_not_fit_the_table(make_table: MakeTable) -> None:
    table = make_table(region_spec=memwal.RegionSpec.bucket("id", 2))
    check(table)
    with pytest.raises(InvalidInputError, match="overwritten"):
        check(table, overwrite=True)
    with pytest.raises(InvalidInputError, match="text"):
        check(table, "id", "n")
    check(table, "id", "n", partial="true")
    with pytest.raises(InvalidInputError, match="id"):
        check(table, "n", partial="true")
    with pytest.raises(InvalidInputError, match="more"):
        check(table, *COLUMNS, "more")
    check(table, *COLUMNS, "more", drop_extra_columns="true")
    check(table, *COLUMNS, "op", op_column="op")
    with pytest.raises(InvalidInputError, match="op"):
        check(table, op_column="op")
    with pytest.raises(InvalidInputError, match="key"):
        check(table, op_column="id")


def test_deletes_of_a_feed_tell_regions_by_the_key_alone(make_table: MakeTable) -> None:
    check(make_table(buckets=2), *COLUMNS, "_change", op_column="_change")
    table = make_table(region_spec=memwal.RegionSpec.bucket("n", 2, immutable=True))
    check(table, *COLUMNS, "op", op_column="op")
    with pytest.raises(InvalidInputError, match="columns n,"):
        check(table, *COLUMNS, "_change", op_column="_change")


@pytest.mark.parametrize("options", [{"op_column": "text"}, {"partial": "true"}])
def test_deletes_and_parts_need_a_key(make_table: MakeTable, options: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match="primary key"):
        check(make_table(primary_key=()), **options)
