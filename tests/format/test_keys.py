import struct
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader
from support.data.bloom import build_bloom_filter

from memwal.errors import InvalidInputError
from memwal.format import keys as key_format
from memwal.format.keys import check_key_type, encode_composite_keys

TYPES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.string(): st.text("\0\1ab\x7fé日\U0010ffff", max_size=6),
    pa.large_string(): st.text(max_size=4),
    pa.binary(): st.binary(max_size=5),
    pa.large_binary(): st.lists(st.sampled_from([0, 1, 255]), max_size=5).map(bytes),
}


@st.composite
def keys(draw: st.DrawFn) -> tuple[list[pa.DataType], list[tuple[Any, ...]]]:
    types = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=4))
    row = st.tuples(*(st.none() | TYPES[data_type] for data_type in types))
    return types, draw(st.lists(row, max_size=30))


@settings(deadline=None, max_examples=200)
@given(keys())
def test_bytes_sort_and_differ_as_keys_do(
    drawn: tuple[list[pa.DataType], list[tuple[Any, ...]]],
) -> None:
    types, rows = drawn

    def comparable(row: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return [(value is not None, value) if value is not None else (False,) for value in row]

    columns = [
        pa.array([row[number] for row in rows], data_type) for number, data_type in enumerate(types)
    ]
    encoded = encode_composite_keys(columns)
    encoded.validate(full=True)
    assert encoded.type == pa.binary()
    assert encoded.null_count == 0
    values = encoded.to_pylist()
    by_key = sorted(range(len(rows)), key=lambda number: comparable(rows[number]))
    by_bytes = sorted(range(len(rows)), key=lambda number: values[number])
    assert by_key == by_bytes
    assert len(set(values)) == len({tuple(comparable(row)) for row in rows})


@settings(deadline=None)
@given(keys(), st.integers(0, 30))
def test_chunks_and_slices_change_nothing(
    drawn: tuple[list[pa.DataType], list[tuple[Any, ...]]], cut: int
) -> None:
    types, rows = drawn
    columns = [
        pa.array([row[number] for row in rows], data_type) for number, data_type in enumerate(types)
    ]
    encoded = encode_composite_keys(columns)
    chunked = [pa.chunked_array([column[:cut], column[cut:]]) for column in columns]
    assert encode_composite_keys(chunked).equals(encoded)
    sliced = [pa.concat_arrays([column, column])[len(rows) :] for column in columns]
    assert encode_composite_keys(sliced).equals(encoded)


def test_the_form_of_each_type() -> None:
    columns = [
        pa.array([-1, None], pa.int32()),
        pa.array([258, None], pa.uint16()),
        pa.array([True, None]),
        pa.array(["a\0b", None]),
        pa.array([b"", None], pa.large_binary()),
    ]
    assert encode_composite_keys(columns).to_pylist() == [
        b"\x01\x7f" + b"\xff" * 7 + b"\x01\0\0\0\0\0\0\x01\x02\x01\x01\x01a\0\xffb\0\0\x01\0\0",
        b"\0" * 5,
    ]


@pytest.mark.parametrize("case", ["int64+string", "string+int32+binary", "all"])
def test_same_as_the_key_index_of_lance(golden: Path, told: dict[str, Any], case: str) -> None:
    columns = []
    for number, name in enumerate(told["keys"][case]["types"]):
        values = [row[number] for row in told["keys"][case]["rows"]]
        if name.endswith("binary"):
            values = [bytes.fromhex(value) for value in values]
        columns.append(pa.array(values, getattr(pa, f"{name}_" if name == "bool" else name)()))
    encoded = encode_composite_keys(columns)
    path = golden / "keys" / f"{case}.pk_index" / "page_data.lance"
    index = LanceFileReader(str(path)).read_all().to_table()
    assert index.column("values").type == pa.binary()
    assert (
        index.column("values")
        .combine_chunks()
        .equals(encoded.take(index.column("ids").combine_chunks()))
    )
    expected = sorted(zip(encoded.to_pylist(), range(len(encoded)), strict=True))
    found = zip(index.column("values").to_pylist(), index.column("ids").to_pylist(), strict=True)
    assert list(found) == expected


def test_keys_of_many_slices() -> None:
    numbers = pa.array(range(50_000), pa.int64())
    texts = pa.array([f"\0{number}" for number in range(50_000)])
    encoded = encode_composite_keys([numbers, texts])
    assert len(encoded) == 50_000
    for row in (0, 16_383, 16_384, 49_999):
        expected = encode_composite_keys([numbers[row : row + 1], texts[row : row + 1]])
        assert encoded[row] == expected[0]


def test_bytes_below_a_null_do_not_count() -> None:
    hidden = pa.Array.from_buffers(
        pa.binary(),
        3,
        [
            pa.py_buffer(b"\x05"),
            pa.py_buffer(struct.pack("<4i", 0, 1, 7, 8)),
            pa.py_buffer(b"ahiddenb"),
        ],
    )
    assert hidden.to_pylist() == [b"a", None, b"b"]
    clean = pa.array([b"a", None, b"b"])
    assert encode_composite_keys([hidden, hidden]).equals(encode_composite_keys([clean, clean]))
    assert build_bloom_filter([hidden]) == build_bloom_filter([clean])


def test_more_bytes_than_one_array_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_format, "_MAX_ARRAY_BYTES", 100)
    assert len(encode_composite_keys([pa.array(["x" * 97])])[0].as_py()) == 100
    with pytest.raises(InvalidInputError):
        encode_composite_keys([pa.array(["x" * 98])])


def test_columns_must_fit_together() -> None:
    with pytest.raises(InvalidInputError):
        encode_composite_keys([])
    with pytest.raises(InvalidInputError):
        encode_composite_keys([pa.array([1]), pa.array([1, 2])])


ACCEPTED = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.bool_()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
]
REFUSED = [
    *(pa.float32(), pa.float64(), pa.date32(), pa.timestamp("us"), pa.decimal128(10, 2)),
    *(pa.binary(16), pa.dictionary(pa.int32(), pa.string()), pa.time64("us"), pa.duration("s")),
]


@pytest.mark.parametrize("data_type", [*ACCEPTED, *REFUSED], ids=str)
def test_key_types_are_refused_as_lance_refuses_them(
    data_type: pa.DataType, tmp_path: Path
) -> None:
    key = {"lance-schema:unenforced-primary-key": "true"}
    field = pa.field("id", data_type, nullable=False, metadata=key)
    dataset = lance.write_dataset(pa.schema([field]).empty_table(), tmp_path / "t.lance")
    if data_type in ACCEPTED:
        check_key_type(field)
        dataset.initialize_mem_wal(maintained_indexes=[], unsharded=True)
        return
    with pytest.raises(InvalidInputError, match="'id'"):
        check_key_type(field)
    with pytest.raises(InvalidInputError):
        encode_composite_keys([pa.nulls(1, data_type)])
    with pytest.raises((OSError, ValueError, RuntimeError)):
        dataset.initialize_mem_wal(maintained_indexes=[], unsharded=True)
