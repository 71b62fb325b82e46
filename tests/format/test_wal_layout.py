"""What a log tells of steps, as text, and in the head of an entry."""

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import CorruptDataError
from memwal.format.wal_encoder import EntryEncoder, encode_sentinel
from memwal.format.wal_entry import EntryHead, decode_entry, decode_head
from memwal.format.wal_layout import NewestStep, decode_applied, encode_applied, newest_steps

NAMES = st.text(max_size=3)
VERSIONS = st.integers(0, (1 << 64) - 1)
STEPS = st.dictionaries(
    st.text(min_size=1),
    st.builds(NewestStep, VERSIONS, NAMES, st.lists(NAMES, max_size=2).map(tuple)),
)


@given(STEPS)
def test_comes_back_as_it_was(steps: dict[str, NewestStep]) -> None:
    assert decode_applied(encode_applied(steps), name="x") == steps


@given(st.dictionaries(NAMES, VERSIONS), st.dictionaries(NAMES, VERSIONS))
def test_the_newest_of_each_source(one: dict[str, int], other: dict[str, int]) -> None:
    steps, others = ({s: NewestStep(n) for s, n in each.items()} for each in (one, other))
    both = newest_steps(steps, others)
    assert both == newest_steps(others, steps)
    assert set(both) == set(one) | set(other)
    assert all(both[s].version == max(one.get(s, 0), other.get(s, 0)) for s in both)


def test_an_incarnation_is_newer_than_those_that_it_replaced() -> None:
    old, new = {"s": NewestStep(9, "a")}, {"s": NewestStep(0, "b", ("a",))}
    assert newest_steps(old, new) == newest_steps(new, old) == new


def test_a_source_without_incarnations_is_stored_as_a_number() -> None:
    assert encode_applied({"s": NewestStep(9)}) == b'{"s":9}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"a": -1}',
        b'{"a": true}',
        b'{"a": 1.5}',
        b'{"a": 1e99}',
        b'{"a": []}',
        b'{"a": [1, 2]}',
        b"\xff",
    ],
)
def test_anything_else_is_told(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_applied(data, name="x")


@pytest.fixture(scope="module")
def entry() -> bytes:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string())])
    encoder = EntryEncoder(schema, writer_epoch=3, writer_id="me")
    rows = pa.record_batch({"id": [1], "text": ["one"]}, schema=schema)
    return encoder.encode([rows], generation=2, applied={"a": NewestStep(7)}).data


def test_the_head_says_what_the_entry_says(entry: bytes) -> None:
    whole = decode_entry(entry, name="x")
    assert whole.applied == {"a": NewestStep(7)}
    assert decode_head(entry, name="x") == EntryHead(3, False, "me", {"a": NewestStep(7)})
    size = decode_head(entry[:20], name="x")
    assert isinstance(size, int)
    assert decode_head(entry[:size], name="x") == EntryHead(3, False, "me", {"a": NewestStep(7)})
    sentinel = encode_sentinel(writer_epoch=4, writer_id="me")
    assert decode_head(sentinel, name="x") == EntryHead(4, True, "me", {})


def test_the_next_entry_of_the_encoder_is_no_step() -> None:
    schema = pa.schema([pa.field("id", pa.int64())])
    encoder = EntryEncoder(schema, writer_epoch=3, writer_id="me")
    rows = pa.record_batch({"id": [1]}, schema=schema)
    for applied in (None, {"a": NewestStep(7)}, None):
        data = encoder.encode([rows], generation=2, applied=applied).data
        assert decode_entry(data, name="x").applied == (applied or {})


def test_a_head_of_damaged_bytes_is_told(entry: bytes) -> None:
    dice = random.Random(1)
    told = 0
    for _ in range(3000):
        data = bytearray(entry[: dice.randrange(len(entry) + 1)])
        for _ in range(dice.randrange(4)):
            if data:
                data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            found = decode_head(bytes(data), name="x")
        except CorruptDataError:
            told += 1
        else:
            assert isinstance(found, int | EntryHead)
    assert told > 100
