"""What a filter rules out: never a region that has a row of the answer."""

import datetime
from dataclasses import replace
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.random_predicates import RandomPredicates

import memwal
from memwal import RegionSpec
from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.format.region_manifest import RegionManifest
from memwal.reader.sources.pruning import RegionPruner, keys_in_filter
from memwal.region.router import Router
from memwal.region.spec_fields import IMMUTABLE

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("flag", pa.bool_(), nullable=False),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("ms")),
        pa.field("n", pa.int32()),
    ]
)
KEY = ("id", "name", "flag")
LISTED = {"id": "1, 2", "name": "'a', 'b'", "flag": "true, false"}

SPECS = {
    "bucket": RegionSpec.bucket("id", 7),
    "bucket of text": RegionSpec.bucket("name", 5),
    "multi-bucket": RegionSpec.multi_bucket(["id", "name"], 6),
    "identity": RegionSpec.identity("name"),
    "identity of a truth": RegionSpec.identity("flag"),
    "truncate": RegionSpec.truncate("id", 10),
    "truncate text": RegionSpec.truncate("name", 2),
    "year": RegionSpec.year("day", immutable=True),
    "month": RegionSpec.month("day", immutable=True),
    "hour": RegionSpec.hour("at", immutable=True),
    "calendar": RegionSpec.combine(
        RegionSpec.year("at", immutable=True),
        RegionSpec.month("at", immutable=True),
        RegionSpec.day("at", immutable=True),
    ),
    "number beside the key": RegionSpec.identity("n", immutable=True),
    "bucket beside the key": RegionSpec.bucket("n", 4, immutable=True),
    "both": RegionSpec.combine(RegionSpec.identity("flag"), RegionSpec.bucket("id", 3)),
    "unsharded": RegionSpec.unsharded(),
}

IDS = [-11, -10, -1, 0, 1, 9, 10, 11, 25, 99]
NAMES = ["", "a", "ab", "abc", "b", "é", "it's"]
DAYS = [datetime.date(2025, 12, 31), datetime.date(2026, 1, 1), datetime.date(2026, 3, 15), None]
TIMES = [
    datetime.datetime(2025, 12, 31, 23, 59, 59),
    datetime.datetime(2026, 1, 1),
    datetime.datetime(2026, 3, 15, 12, 30),
    datetime.datetime(1969, 12, 31, 23),
    None,
]
NUMBERS = [-5, 0, 3, 7, None]

rows = st.lists(
    st.tuples(
        st.sampled_from(IDS),
        st.sampled_from(NAMES),
        st.booleans(),
        st.sampled_from(DAYS),
        st.sampled_from(TIMES),
        st.sampled_from(NUMBERS),
    ),
    min_size=1,
    max_size=12,
)
VALUES: dict[str, list[str]] = {
    "id": [str(value) for value in IDS],
    "name": ["'" + value.replace("'", "''") + "'" for value in NAMES],
    "day": [f"date '{value}'" for value in DAYS if value],
    "at": [f"timestamp '{value}'" for value in TIMES if value],
    "n": [str(value) for value in NUMBERS if value is not None],
}


predicates = st.randoms(use_true_random=False).map(
    lambda random: RandomPredicates(random, SCHEMA, VALUES).draw(leaves=5)
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseTable]:
    folder = tmp_path_factory.mktemp("tables")
    return {
        name: memwal.create(
            str(folder / name.replace(" ", "-")), SCHEMA, primary_key=list(KEY), region_spec=spec
        ).base()
        for name, spec in SPECS.items()
    }


def regions_of(base: BaseTable, spec: RegionSpec, data: pa.Table) -> list[tuple[Any, pa.Table]]:
    return [
        (
            RegionManifest(
                region_id=assignment.region_id,
                version=1,
                writer_epoch=1,
                spec_id=1,
                region_fields=assignment.field_values,
            ),
            pa.Table.from_batches([part]),
        )
        for assignment, part in Router(spec, base.schema).route(data.combine_chunks())
    ]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", SPECS)
def test_no_region_with_a_row_of_the_answer_is_left_out(
    tables: dict[str, BaseTable], name: str
) -> None:
    base = tables[name]

    @settings(max_examples=40)
    @given(drawn=rows, predicate=predicates)
    def check(drawn: list[Any], predicate: str) -> None:
        data = pa.Table.from_pylist(
            [dict(zip(SCHEMA.names, row, strict=True)) for row in drawn], schema=SCHEMA
        )
        if name == "number beside the key":
            # Null names no region of its own.
            data = data.filter(pc.is_valid(data.column("n")))
        pruner = RegionPruner(base, f"({predicate})")
        for manifest, part in regions_of(base, SPECS[name], data):
            reason = pruner.reason_against(manifest)
            if reason is not None:
                passing = lance.write_dataset(part, "memory://").count_rows(predicate)
                assert passing == 0, f"{predicate}: {reason}: {part.to_pylist()}"
        assert_lists_the_keys(base, predicate, data)

    check()


def assert_lists_the_keys(base: BaseTable, predicate: str, data: pa.Table) -> None:
    """The rows that pass have keys that the predicate lists, if it lists any."""
    build = keys_in_filter(predicate)
    assert build is not None
    try:
        listed = build(base)
    except InvalidInputError:
        return
    passing = lance.write_dataset(data, "memory://").to_table(filter=predicate)
    assert set(keys_of(passing.select(listed.column_names))) <= set(keys_of(listed))


def keys_of(rows: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows.to_pylist()]


def test_listed_keys_have_the_types_of_the_table(tables: dict[str, BaseTable]) -> None:
    base = next(iter(tables.values()))
    build = keys_in_filter(" and ".join(f"{name} in ({LISTED[name]})" for name in KEY))
    assert build is not None
    listed = build(base)
    assert listed.schema.types == [base.schema.field(name).type for name in KEY]
    assert listed.num_rows == 2 ** len(KEY)


MARCH = {"day": datetime.date(2026, 3, 15)}
NOON = {"at": datetime.datetime(2026, 3, 15, 12, 30)}
MIDNIGHT = {"at": datetime.datetime(2026, 3, 15)}


@pytest.mark.parametrize(
    ("name", "predicate", "row", "pruned"),
    [
        ("bucket", "id = 1", {"id": 9}, True),
        ("bucket", "id = 1", {"id": 1}, False),
        ("bucket", "id in (1, 1) and n = 5", {"id": 9}, True),
        ("bucket", "n = 5", {"id": 9}, False),
        ("bucket", "id > 5", {"id": 9}, False),
        ("bucket", "id = 1 or n = 3", {"id": 9}, False),
        ("bucket", "id > 0 and id < 5 and id = 7", {"id": 7}, True),
        ("bucket", "id is null", {"id": 7}, True),
        ("multi-bucket", "id = 1 and name = 'a'", {"id": 9, "name": "b"}, True),
        ("multi-bucket", "id = 1", {"id": 9, "name": "b"}, False),
        ("identity", "name = 'b'", {"name": "a"}, True),
        ("identity", "name >= 'b'", {"name": "a"}, True),
        ("identity", "not name <= 'a'", {"name": "a"}, True),
        ("identity", "name != 'a'", {"name": "a"}, True),
        ("identity", "name != 'a' or name = 'a'", {"name": "a"}, False),
        ("identity of a truth", "not flag", {"flag": True}, True),
        ("truncate", "id between 20 and 29", {"id": 11}, True),
        ("truncate", "id > 15", {"id": 11}, False),
        ("truncate", "id < -10", {"id": -1}, True),
        ("truncate text", "name > 'b'", {"name": "abc"}, True),
        ("truncate text", "name > 'abx'", {"name": "abc"}, False),
        ("truncate text", "name = 'ac'", {"name": "abc"}, True),
        ("year", "day < date '2026-01-01'", MARCH, True),
        ("year", "day < '2026-01-02'", MARCH, False),
        ("month", "day >= '2026-01-01' and day < '2026-03-01'", MARCH, True),
        ("month", "day >= '2026-01-01'", MARCH, False),
        ("hour", "at >= '2026-01-01 13:00:00' and at < '2026-01-02 12:00:00'", NOON, True),
        ("calendar", "at >= '2026-03-16' and at < '2027-01-01'", NOON, True),
        ("calendar", "at >= '2026-03-15' and at < '2026-03-16'", NOON, False),
        ("number beside the key", "n = 3", {"n": 7}, True),
        ("bucket", "id = cast(1 as bigint)", {"id": 9}, True),
        ("bucket", "id = 1::int", {"id": 9}, True),
        ("bucket", "id in (1, null)", {"id": 9}, True),
        ("bucket", "not id in (1, null)", {"id": 9}, False),
        ("bucket", "id is not distinct from 1", {"id": 9}, True),
        ("bucket", "id is distinct from 1", {"id": 9}, False),
        ("bucket", "(id = 1) is true", {"id": 9}, True),
        ("bucket", "(id = 1) is not true", {"id": 9}, False),
        ("bucket", "id = 1 or n = 3 and id = 1", {"id": 9}, True),
        ("identity", "name like 'b%'", {"name": "a"}, True),
        ("identity", "name not like 'a%'", {"name": "abc"}, True),
        ("identity", "name like 'a%'", {"name": "abc"}, False),
        ("identity", "name like 'a_%c'", {"name": "b"}, True),
        ("identity", "name not like 'a_%c'", {"name": "a"}, False),
        ("identity", "name like 'a'", {"name": "abc"}, True),
        ("identity", "name like '\\%'", {"name": "abc"}, False),
        ("identity", "name ilike 'B%'", {"name": "abc"}, False),
        ("identity", "starts_with(name, 'b')", {"name": "abc"}, True),
        ("identity", "name is not null", {"name": "abc"}, False),
        ("identity", "name is null", {"name": "abc"}, True),
        ("identity of a truth", "flag is true", {"flag": False}, True),
        ("identity of a truth", "flag is not true", {"flag": True}, True),
        ("identity of a truth", "flag is not false", {"flag": True}, False),
        ("identity of a truth", "flag in (false)", {"flag": True}, True),
        ("truncate text", "name like 'b%'", {"name": "abc"}, True),
        ("truncate text", "name like 'abd%'", {"name": "abc"}, False),
        ("truncate text", "name like 'acd%'", {"name": "abc"}, True),
        ("truncate text", "name like 'a%'", {"name": "abc"}, False),
        ("truncate text", "name not like 'a%'", {"name": "abc"}, True),
        ("truncate text", "name not like 'abc%'", {"name": "abc"}, False),
        ("truncate text", "starts_with(name, 'b')", {"name": "a"}, True),
        ("truncate", "id not in (10, 11) and id >= 30", {"id": 11}, True),
        ("year", "date_part('year', day) = 2025", MARCH, True),
        ("year", "date_part('YEAR', day) >= 2026", MARCH, False),
        ("year", "2026 < date_part('year', day)", MARCH, True),
        ("year", "date_part('year', day) in (1, 2)", MARCH, True),
        ("year", "date_part('month', day) = 1", MARCH, False),
        ("year", "date_part('week', day) = 1", MARCH, False),
        ("month", "date_part('month', day) = 1", MARCH, True),
        ("calendar", "cast(at as date) = date '2026-03-16'", NOON, True),
        ("calendar", "at::date <= cast('2026-03-15' as date)", NOON, False),
        # SQL leaves the time of day out.
        ("hour", "at = cast('2026-03-15 12:30:00' as date)", MIDNIGHT, False),
        ("hour", "at = '2026-03-15 12:30:00'::date::timestamp", MIDNIGHT, False),
        ("hour", "at = '2026-03-15'::date::timestamp", NOON, True),
        ("calendar", "date_part('year', at) = 2026 and date_part('month', at) = 4", NOON, True),
        ("hour", "date_part('hour', at) between 13 and 23", NOON, True),
        ("unsharded", "id = 3", {"id": 7}, False),
        ("unsharded", "false", {"id": 7}, True),
        ("both", "id = 1 and flag", {"id": 1, "flag": False}, True),
    ],
)
def test_what_is_ruled_out(
    tables: dict[str, BaseTable], name: str, predicate: str, row: dict[str, Any], pruned: bool
) -> None:
    whole = {"id": 0, "name": "", "flag": True, "day": None, "at": None, "n": None, **row}
    data = pa.Table.from_pylist([whole], schema=SCHEMA)
    ((manifest, _),) = regions_of(tables[name], SPECS[name], data)
    reason = RegionPruner(tables[name], f"({predicate})").reason_against(manifest)
    assert (reason is not None) == pruned, reason


def test_values_that_were_not_recorded_rule_nothing_out(tables: dict[str, BaseTable]) -> None:
    base = tables["bucket"]
    data = pa.Table.from_pylist(
        [{"id": 9, "name": "", "flag": True, "day": None, "at": None, "n": None}], schema=SCHEMA
    )
    ((manifest, _),) = regions_of(base, SPECS["bucket"], data)
    for changed in (
        {"region_fields": ()},
        {"region_fields": (("bucket", b"x"),)},
        {"spec_id": 0},
        {"spec_id": 2},
    ):
        known = {name: getattr(manifest, name) for name in ("spec_id", "region_fields")} | changed
        region = RegionManifest(region_id=manifest.region_id, version=1, writer_epoch=1, **known)
        assert RegionPruner(base, "(id = 1)").reason_against(region) is None


def test_a_region_by_a_column_that_may_change_is_not_ruled_out(
    tables: dict[str, BaseTable],
) -> None:
    """Its newest rows may have another value than the one by which the region was made."""
    name = "number beside the key"
    base, spec = tables[name], SPECS[name]
    row = {"id": 9, "name": "", "flag": True, "day": None, "at": None, "n": 7}
    ((manifest, _),) = regions_of(base, spec, pa.Table.from_pylist([row], schema=SCHEMA))
    (stored,) = base.details.region_specs
    parameters = {k: v for k, v in stored.fields[0].parameters.items() if k != IMMUTABLE}
    mutable = replace(stored, fields=(replace(stored.fields[0], parameters=parameters),))
    changing = replace(base, details=replace(base.details, region_specs=(mutable,)))
    assert RegionPruner(base, "(n = 3)").reason_against(manifest) is not None
    assert RegionPruner(changing, "(n = 3)").reason_against(manifest) is None


def test_bare_keys_of_another_client_are_found(tables: dict[str, BaseTable]) -> None:
    """Its tombstones have null where their rows had a number."""
    base = tables["bucket beside the key"]
    spec = SPECS["bucket beside the key"]
    bare = {"id": 9, "name": "", "flag": True, "day": None, "at": None, "n": None}
    ((manifest, _),) = regions_of(base, spec, pa.Table.from_pylist([bare], schema=SCHEMA))
    assert RegionPruner(base, "(n = 3)").reason_against(manifest) is None
