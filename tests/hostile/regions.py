"""How rows are divided: expressions, and what a command line says of regions and columns."""

from typing import Any

import pyarrow as pa
from hostile.harness import Area, Broken, safely
from hostile.values import NASTY, one_of_these, texts, words
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from memwal.cli import options
from memwal.cli.options import schema_from
from memwal.errors import MemWalError
from memwal.expressions import region_sql
from memwal.region.router import Router
from memwal.region.spec import RegionSpec
from memwal.region.spec_text import parse_regions
from memwal.region.sql_transform import Expression

SCHEMA = pa.schema([("n", pa.int64()), ("t", pa.string())])
ROWS = pa.record_batch(
    {
        "n": pa.array([-(2**63), -1, 0, None, 7, 2**63 - 1]),
        "t": ["", "a\0b", None, "%_\\", "\U0001f984" * 50, "2026-02-30T25:61:61"],
    },
    schema=SCHEMA,
)
_RESULTS = (pa.int64(), pa.string(), pa.bool_(), pa.date32(), pa.decimal128(38, 0))
_TEXTS = ("''", "'a'", "'%_%'", "'year'", "'1970-01-01'", "'9999999-99-99'", "'''--;('")
_WHOLE = ("0", "1", "63", "9223372036854775807", "9223372036854775808", "9" * 40)
_CALLS = (
    "abs({0})",
    "- {0}",
    "not ({0})",
    "({0} {1} {2})",
    "({0}) is null",
    "coalesce({0}, {2})",
    "nullif({0}, {2})",
    "greatest({0}, {2})",
    "left({0}, {2})",
    "right({0}, {2})",
    "substr({0}, {2}, {0})",
    "split_part({0}, {2}, {0})",
    "strpos({0}, {2})",
    "date_part({0}, {2})",
    "date_trunc({0}, {2})",
    "concat({0}, {2})",
    "md5({0})",
    "reverse({0})",
    "btrim({0}, {2})",
    "murmur3({0})",
    "murmur3_multi({0}, {2})",
    "cast({0} as {3})",
    "case when {0} then {2} else {0} end",
    "case {0} when {2} then {2} end",
    "({0} between {2} and {0})",
    "({0} in ({2}, {0}))",
    "({0} like {2})",
)
_SIGNS = ("+", "-", "*", "/", "%", "<<", ">>", "=", "<", "||", "&", "|", "^", "and", "or")
_TYPES = ("bigint", "tinyint", "int unsigned", "varchar", "date", "timestamp", "boolean")


def _calls(inner: SearchStrategy[str]) -> SearchStrategy[str]:
    return st.builds(
        str.format,
        st.sampled_from(_CALLS),
        inner,
        st.sampled_from(_SIGNS),
        inner,
        st.sampled_from(_TYPES),
    )


_NEARLY = words(
    *("col0", "col1", "col2", " ", "(", ")", ",", "+", "-", "1", "'", "'a'", "--", "/*", "*/", ";"),
    *("select", "from", "now()", "random()", "read_csv('/etc/passwd')", "lower(", "case", "end"),
    *("cast(", " as ", "bigint", "interval", "array[1]", "$1", '"id"', "{{ 1 }}"),
)


def expressions() -> SearchStrategy[str]:
    """Expressions that are meant well, and those that are not."""
    leaves = st.sampled_from(("col0", "col1", *_TEXTS, *_WHOLE))
    return st.recursive(leaves, _calls, max_leaves=6) | _NEARLY | texts()


def _evaluate(_: Any, value: tuple[str, pa.DataType]) -> None:
    sql, result_type = value

    def evaluate() -> None:
        made = Expression(sql, result_type, 2)
        if made.value_type(SCHEMA.types) is None:
            return
        found = made.apply(ROWS.columns)
        if len(found) != len(ROWS) or found.type != result_type:
            raise Broken(f"{len(found)} values of {found.type} for {len(ROWS)} rows: {sql}")

    safely(evaluate)


_KINDS = ("bucket", "multi_bucket", "identity", "truncate", "year", "hour", "expression", "")
_NUMBERS = ("0", "1", "16", "1024", "1025", "-1", "1e3", "9" * 18, "9" * 19, "9" * 5_000, "\u0663")


def _region_texts() -> SearchStrategy[str]:
    column = st.sampled_from(("n", "t", "n,t", "x")) | texts()
    number = st.sampled_from(_NUMBERS) | texts()
    return (
        st.builds("{}:{}:{}".format, st.sampled_from(_KINDS), column, number)
        | st.builds("immutable:{}:{}".format, st.sampled_from(_KINDS), column)
        | st.builds("expression:{}:{}:{}".format, type_texts(), column, expressions())
        | texts("unsharded", "manual", "immutable:unsharded")
    )


def type_texts() -> SearchStrategy[str]:
    """Types as a command line has them."""
    size = st.sampled_from(_NUMBERS)
    plain = st.sampled_from(("int64", "string", "bool", "timestamp[us]", "null", "duration[s]"))
    return st.recursive(
        plain | texts("list<", ">", "int8[", "]"),
        lambda inner: (
            st.builds("list<{}>".format, inner)
            | st.builds("{}[{}]".format, inner, size)
            | st.builds("decimal128({}, {})".format, size, size)
            | st.builds("timestamp[us, {}]".format, inner)
        ),
        max_leaves=3,
    ) | st.integers(100, 3_000).map(lambda depth: "list<" * depth + "int8" + ">" * depth)


def _divide(_: Any, given: list[str]) -> None:
    def divide() -> None:
        spec = parse_regions(given)
        if spec is not None:
            str(spec)
            Router(spec, SCHEMA).route(ROWS)

    safely(divide)


def _columns(_: Any, given: list[str]) -> None:
    made = safely(lambda: schema_from(None, given))
    if not isinstance(made, MemWalError) and len(made) != len(given):
        raise Broken(f"{len(given)} columns became {len(made)}")


AREAS = (
    Area(
        "region expressions",
        st.tuples(expressions(), st.sampled_from(_RESULTS)),
        _evaluate,
        (region_sql, "_check_depth"),
    ),
    Area(
        "regions of a command line",
        st.lists(_region_texts(), min_size=1, max_size=3),
        _divide,
        (RegionSpec, "__post_init__"),
    ),
    Area(
        "columns of a command line",
        st.lists(
            st.builds("{}:{}".format, one_of_these(*NASTY), type_texts()) | texts(),
            min_size=1,
            max_size=3,
        ),
        _columns,
        (options, "parse_type"),
    ),
)
