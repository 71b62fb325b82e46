"""Region expressions: evaluated by DataFusion, and held to the six rules of the spec."""

import sys
from collections.abc import Sequence
from typing import Any

import mmh3
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processes import run_python

from memwal.errors import InvalidInputError, MissingExtraError
from memwal.region import sql_transform
from memwal.region.hashing import murmur3_multi
from memwal.region.sql_transform import Expression
from memwal.region.transforms import MultiBucket


def murmur3(column: pa.Array) -> pa.Int32Array:
    return murmur3_multi([column])


def value(sql: str, *columns: pa.Array, result: pa.DataType | None = None) -> list[Any]:
    """Check and evaluate an expression, as setting a table up and writing to it do."""
    made = Expression(sql, result or pa.int64(), len(columns))
    assert made.value_type([column.type for column in columns]) == made.result_type
    found = made.apply(columns)
    assert found.type == made.result_type
    return found.to_pylist()


def test_values() -> None:
    numbers, texts = pa.array([5, -7, None]), pa.array(["Ab", None, "x"])
    assert value("col0 % 3", numbers) == [2, -1, None]
    assert value("lower(left(col0, 1))", texts, result=pa.string()) == ["a", None, "x"]
    assert value("lower(col0)", texts, result=pa.large_string()) == ["ab", None, "x"]
    assert value("col0 > 0", numbers, result=pa.bool_()) == [True, False, None]
    assert value("coalesce(length(col1), col0)", numbers, texts) == [2, -7, 1]
    assert value("case when col0 is null then 'n' else col1 end", numbers, texts, result=pa.utf8())
    assert value("'murmur3(' || col0", texts, result=pa.string()) == [
        "murmur3(Ab",
        None,
        "murmur3(x",
    ]


# The engine plans six expressions anew for each example.
@settings(max_examples=25)
@given(st.lists(st.none() | st.text(max_size=6), min_size=1, max_size=10))
def test_hashes(values: list[str | None]) -> None:
    texts = pa.array(values, pa.string())
    numbers = pa.array(range(len(values)), pa.int32())
    assert value("murmur3(col0)", texts, result=pa.int32()) == murmur3(texts).to_pylist()
    assert (
        value("murmur3_multi(col0, col1)", texts, numbers)
        == murmur3_multi([texts, numbers]).to_pylist()
    )
    assert value("abs(murmur3(col0)) % 7", texts, result=pa.int32()) == (
        MultiBucket(7).apply([texts]).to_pylist()
    )
    assert value("murmur3(lower(col0)) - murmur3(murmur3(col1))", texts, numbers) == [
        None
        if text is None
        else mmh3.hash(text.lower().encode())
        - mmh3.hash(mmh3.hash(n.to_bytes(8, "little")).to_bytes(8, "little", signed=True))
        for n, text in enumerate(values)
        if text is None or text.lower() == _rust_lower(text)
    ] or any(text is not None and text.lower() != _rust_lower(text) for text in values)


def _rust_lower(text: str) -> str:
    """Lower case as the engine gives it, whose Unicode tables have another age."""
    made = Expression("lower(col0)", pa.string(), 1)
    found: str = made.apply([pa.array([text])])[0].as_py()
    return found


def test_the_smallest_hash_has_an_absolute_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def smallest(columns: Sequence[pa.Array]) -> pa.Array:
        return pa.array([-(2**31)] * len(columns[0]), pa.int32())

    monkeypatch.setattr(sql_transform, "murmur3_multi", smallest)
    # An expression of this test alone: each is compiled once per process.
    assert value("abs(murmur3(col0)) % 7919", pa.array(["a"])) == [2**31 % 7919]


@pytest.mark.parametrize("number", [0, 1, 5, 100, 127])
def test_the_width_of_a_number_does_not_matter(number: int) -> None:
    for sql in ("col0 * col0", "col0 - 200", "murmur3(col0)", "cast(col0 as varchar)"):
        result = pa.string() if "varchar" in sql else pa.int64()
        found = {
            value(sql, pa.array([number], kind), result=result)[0]
            for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32())
        }
        assert len(found) == 1, sql


def test_special_floats_are_alike() -> None:
    column = pa.array([0.0, -0.0, float("nan"), -float("nan"), 1.5], pa.float32())
    zero, minus, nan, other, _ = value("cast(col0 as varchar)", column, result=pa.string())
    assert zero == minus
    assert nan == other


def test_rule_3_an_expression_that_depends_on_the_sign() -> None:
    made = Expression("case when (col0 << 63) < 0 then 1 else 0 end", pa.int64(), 1)
    made.value_type([pa.int64()])
    with pytest.raises(InvalidInputError):
        made.value_type([pa.uint64()])
    assert value("col0 % 5", pa.array([2**64 - 1, 7], pa.uint64())) == [0, 2]


@pytest.mark.parametrize(
    ("sql", "result"),
    [
        ("col0", pa.string()),
        ("col1", pa.int64()),
        ("col0 = 1", pa.int32()),
        ("col0 +", pa.int64()),
        ("left(col0, col1)", pa.string()),
        ("murmur3(col0, col1)", pa.int32()),
        ("murmur3()", pa.int32()),
        ("murmur3_multi()", pa.int32()),
        ("1 / coalesce(col0, 0)", pa.int64()),
        ("col0 col1", pa.int64()),
    ],
)
def test_rules_that_are_broken(sql: str, result: pa.DataType) -> None:
    made = Expression(sql, result, 2)
    with pytest.raises(InvalidInputError):
        made.value_type([pa.int64(), pa.string()])


def test_a_row_that_has_no_value() -> None:
    made = Expression("100 / col0", pa.int64(), 1)
    made.value_type([pa.int64()])
    with pytest.raises(InvalidInputError):
        made.apply([pa.array([1, 0])])


def test_a_value_that_does_not_fit_its_type() -> None:
    made = Expression("col0", pa.int8(), 1)
    made.value_type([pa.int64()])
    with pytest.raises(InvalidInputError, match="int8"):
        made.apply([pa.array([1, 1000])])


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us", "Europe/Berlin"), pa.list_(pa.int8()), pa.struct([])], ids=str
)
def test_types_that_cannot_be_used(kind: pa.DataType) -> None:
    assert Expression("1", pa.int64(), 1).value_type([kind]) is None


def test_rows_are_not_kept() -> None:
    engine = sql_transform.Engine(["10", "/", "murmur3", "(", "col0", ")"], [pa.int64()])
    assert len(engine.evaluate([pa.array([1, 2])])) == 2
    zero = sql_transform.Engine(["10", "/", "col0"], [pa.int64()])
    with pytest.raises(InvalidInputError):
        zero.evaluate([pa.array([0])])
    for used in (engine, zero):
        assert not used._context.catalog().schema().names()


def test_rows_keep_their_order() -> None:
    numbers = pa.array(range(100_000))
    assert value("col0 + 1", numbers) == list(range(1, 100_001))


def test_dropped_columns_are_null() -> None:
    made = Expression("coalesce(col0, 0 - 1) + murmur3(col0)", pa.int64(), 1)
    assert made.apply([pa.nulls(2)]).to_pylist() == [None, None]
    assert Expression("coalesce(col0, 7)", pa.int64(), 1).apply([pa.nulls(1)]).to_pylist() == [7]


def test_datafusion_is_loaded_only_for_an_expression() -> None:
    code = (
        "import sys; from memwal.region.spec import RegionSpec; import pyarrow as pa;"
        "from memwal.region.router import Router;"
        "Router(RegionSpec.multi_bucket(['a'], 4), pa.schema([('a', pa.int64())]));"
        "spec = RegionSpec.expression('col0', ['a'], pa.int64());"
        "assert 'datafusion' not in sys.modules;"
        "Router(spec, pa.schema([('a', pa.int64())]));"
        "assert 'datafusion' in sys.modules"
    )
    run_python(code)


def test_without_datafusion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datafusion", None)
    monkeypatch.delitem(sys.modules, "memwal.region.sql_transform", raising=False)
    with pytest.raises(MissingExtraError, match="extra expressions"):
        Expression("col0 + 7919", pa.int64(), 1).value_type([pa.int64()])
