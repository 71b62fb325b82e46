import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.entries import encode_entry

from memwal.errors import CorruptDataError, InvalidInputError, MemWalError
from memwal.format import paths, wal_entry
from memwal.format.region_manifest import RegionManifest
from memwal.format.wal_encoder import encode_sentinel
from memwal.format.wal_entry import TornEntryError, WalEntry, decode_entry

REGION = UUID("5b8e1f0c-6a34-4c1e-9d52-0f8a7b3c2d11")
KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("text", pa.string(), metadata={"unit": "none"}),
        pa.field("vector", pa.list_(pa.float32(), 3)),
        pa.field("color", pa.dictionary(pa.int8(), pa.string())),
        pa.field("tags", pa.list_(pa.field("item", pa.dictionary(pa.int16(), pa.string())))),
        pa.field("_tombstone", pa.bool_(), nullable=False),
    ],
    metadata={"owner": "tests"},
)


def batch_of(ids: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "id": number,
                "text": None if number % 3 == 0 else f"text {number}",
                "vector": None if number % 5 == 0 else [0.5, 1.0, float(number)],
                "color": f"color {number % 4}",
                "tags": [f"tag {number % 2}"] * (number % 3),
                "_tombstone": number % 7 == 0,
            }
            for number in ids
        ],
        schema=SCHEMA,
    )


def encode(*batches: pa.RecordBatch, schema: pa.Schema = SCHEMA) -> bytes:
    entry = encode_entry(batches, schema=schema, writer_epoch=3, generation=8, writer_id="writer")
    return bytes(entry)


@settings(deadline=None)
@given(
    parts=st.lists(st.lists(st.integers(0, 2**40), max_size=6), max_size=4),
    writer_epoch=st.integers(0, paths.MAX_COUNTER),
    generation=st.integers(0, paths.MAX_COUNTER),
    writer_id=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
)
def test_round_trip(
    parts: list[list[int]], writer_epoch: int, generation: int, writer_id: str
) -> None:
    batches = [batch_of(ids) for ids in parts]
    data = encode_entry(
        batches,
        schema=SCHEMA,
        writer_epoch=writer_epoch,
        generation=generation,
        writer_id=writer_id,
    )
    entry = decode_entry(data, name="x")
    assert (entry.writer_epoch, entry.generation) == (writer_epoch, generation)
    assert entry.writer_id == writer_id
    assert not entry.is_sentinel
    assert entry.schema.equals(SCHEMA, check_metadata=True)
    assert list(entry.batches) == batches
    for batch in entry.batches:
        assert batch.schema.equals(SCHEMA, check_metadata=True)
        batch.validate(full=True)


def test_batches_with_their_own_dictionaries_survive() -> None:
    schema = pa.schema([pa.field("color", pa.dictionary(pa.int8(), pa.string()))])
    batches = [
        pa.record_batch([pa.array(colors).dictionary_encode().cast(schema.field(0).type)], schema)
        for colors in (["red", "green"], ["blue"], ["blue", "red", None])
    ]
    entry = decode_entry(encode(*batches, schema=schema), name="x")
    assert [batch.column(0).to_pylist() for batch in entry.batches] == [
        ["red", "green"],
        ["blue"],
        ["blue", "red", None],
    ]


def test_slices_are_written_without_the_rest() -> None:
    whole = batch_of(list(range(1000)))
    data = encode(whole.slice(10, 3))
    assert len(data) < len(encode(whole)) / 10
    assert decode_entry(data, name="x").batches == (whole.slice(10, 3),)


def test_decoding_copies_nothing() -> None:
    data = pa.py_buffer(encode(batch_of([1, 2, 3])))
    (batch,) = decode_entry(data, name="x").batches
    values = batch.column("id").buffers()[1]
    assert data.address <= values.address < data.address + data.size


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
def test_any_kind_of_bytes_can_be_read(kind: Any) -> None:
    assert decode_entry(kind(encode(batch_of([1]))), name="x").writer_id == "writer"


def test_metadata_of_another_entry_does_not_leak_into_this_one() -> None:
    stale = SCHEMA.with_metadata({"fence_sentinel": "true", "writer_epoch": "99", "owner": "tests"})
    entry = decode_entry(encode(batch_of([1]), schema=stale), name="x")
    assert not entry.is_sentinel
    assert entry.writer_epoch == 3
    assert entry.schema.equals(SCHEMA, check_metadata=True)


def test_batches_in_another_schema_are_refused() -> None:
    with pytest.raises(InvalidInputError):
        encode(batch_of([1]).drop_columns(["text"]))


@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_out_of_range_are_refused(number: int) -> None:
    for epoch, generation in ((number, 1), (1, number)):
        with pytest.raises(InvalidInputError):
            encode_entry(
                [], schema=SCHEMA, writer_epoch=epoch, generation=generation, writer_id="w"
            )
    with pytest.raises(InvalidInputError):
        encode_sentinel(writer_epoch=number)


def test_the_placeholder_cannot_come_from_the_schema() -> None:
    schema = SCHEMA.with_metadata({"odd": b"\x11memwal.unset.\x11\x11"})
    with pytest.raises(InvalidInputError):
        encode(batch_of([1]), schema=schema)


# Entries of Lance


def test_a_sentinel_says_what_one_of_lance_says(golden: Path) -> None:
    # The bytes differ: Arrow's C++ and Rust libraries lay out the same schema message differently.
    lances = (golden / "region" / "wal" / "3.arrow").read_bytes()
    ours = encode_sentinel(writer_epoch=2)
    assert pa.ipc.read_schema(pa.py_buffer(ours)).metadata == {
        b"fence_sentinel": b"true",
        b"writer_epoch": b"2",
    }
    for data in (lances, ours):
        assert pa.ipc.read_schema(pa.py_buffer(data)).equals(
            pa.ipc.read_schema(pa.py_buffer(lances)), check_metadata=True
        )
        assert decode_entry(data, name="3") == WalEntry(
            writer_epoch=2,
            generation=None,
            is_sentinel=True,
            batches=(),
            schema=pa.schema([]),
            writer_id=None,
        )


@pytest.mark.parametrize("writer_id", [None, "writer"])
def test_a_sentinel_fences_a_writer_of_lance(tmp_path: Path, writer_id: str | None) -> None:
    uri = tmp_path / "t.lance"
    rows = pa.table({"id": [1]}, schema=pa.schema([SCHEMA.field("id")]))
    lance.write_dataset(rows, uri).initialize_mem_wal(maintained_indexes=[], unsharded=True)
    writer = lance.dataset(uri).mem_wal_writer(str(REGION))
    writer.put(rows)
    newest = RegionManifest.decode((uri / paths.manifest_key(REGION, 1)).read_bytes())
    claimed = replace(newest, version=2, writer_epoch=2)
    (uri / paths.manifest_key(REGION, 2)).write_bytes(claimed.encode())
    sentinel = encode_sentinel(writer_epoch=2, writer_id=writer_id)
    (uri / paths.wal_key(REGION, 2)).write_bytes(sentinel)
    for call in (lambda: writer.put(rows), writer.close):
        with pytest.raises(OSError, match="fenced"):
            call()


def test_a_sentinel_can_say_who_wrote_it() -> None:
    entry = decode_entry(encode_sentinel(writer_epoch=5, writer_id="writer"), name="x")
    assert (entry.writer_epoch, entry.is_sentinel, entry.writer_id) == (5, True, "writer")


def test_entries_of_lance_are_read(golden: Path, told: dict[str, Any]) -> None:
    entries = {
        int(path.stem): decode_entry(path.read_bytes(), name=path.name)
        for path in (golden / "region" / "wal").iterdir()
    }
    rows = {position: [] for position in entries}
    for position, entry in entries.items():
        for batch in entry.batches:
            rows[position] += batch.to_pylist()
        assert not entry.schema.metadata
        assert entry.writer_id is None
    puts = told["region"]["puts"]
    assert [[row["id"] for row in rows[position]] for position in (1, 2, 4)] == puts
    assert rows[1][2] == {
        "id": 102,
        "name": None,
        "vector": [102.0, 0.5],
        "color": "red",
        "_tombstone": False,
    }
    assert rows[5] == [
        {"id": deleted, "name": None, "vector": None, "color": None, "_tombstone": True}
        for deleted in told["region"]["deleted"]
    ]
    assert [(entries[n].writer_epoch, entries[n].generation) for n in (1, 2, 4, 5)] == [
        (1, 1),
        (1, 1),
        (2, 2),
        (2, 2),
    ]
    field = entries[1].schema.field("id")
    assert field.metadata[b"lance-schema:unenforced-primary-key"] == b"true"
    assert field.metadata[b"lance:field_id"] == b"0"


def test_lance_replays_entries_written_here(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata=KEY),
            pa.field("text", pa.string()),
            pa.field("color", pa.dictionary(pa.int8(), pa.string())),
        ]
    )
    uri = tmp_path / "t.lance"
    base = pa.Table.from_pylist([{"id": 1, "text": "base", "color": "red"}], schema=schema)
    lance.write_dataset(base, uri).initialize_mem_wal(maintained_indexes=[], unsharded=True)
    entry_schema = schema.append(pa.field("_tombstone", pa.bool_(), nullable=False))

    def put(key: str, data: bytes) -> None:
        path = uri / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def entry(rows: list[dict[str, Any]], epoch: int) -> bytes:
        batch = pa.RecordBatch.from_pylist(rows, schema=entry_schema)
        written = encode_entry(
            [batch, batch],
            schema=entry_schema,
            writer_epoch=epoch,
            generation=1,
            writer_id="writer",
        )
        return bytes(written)

    manifest = RegionManifest(region_id=REGION, version=1, writer_epoch=2, spec_id=1)
    put(paths.manifest_key(REGION, 1), manifest.encode())
    put(paths.version_hint_key(REGION), json.dumps({"version": 1}).encode())
    first = [
        {"id": 100, "text": "first", "color": "green", "_tombstone": False},
        {"id": 101, "text": "gone", "color": None, "_tombstone": False},
    ]
    second = [{"id": 101, "text": None, "color": None, "_tombstone": True}]
    put(paths.wal_key(REGION, 1), entry(first, 1))
    put(paths.wal_key(REGION, 2), encode_sentinel(writer_epoch=2, writer_id="writer"))
    put(paths.wal_key(REGION, 3), entry(second, 2))
    with lance.dataset(uri).mem_wal_writer(str(REGION)) as writer:
        assert writer.memtable_stats()["row_count"] == 6
        seen = writer.lsm_scanner().project(["id", "text", "color"]).to_table()
    assert sorted(seen.to_pylist(), key=lambda row: int(row["id"])) == [
        {"id": 1, "text": "base", "color": "red"},
        {"id": 100, "text": "first", "color": "green"},
    ]
    sentinel = decode_entry((uri / paths.wal_key(REGION, 4)).read_bytes(), name="4")
    assert (sentinel.is_sentinel, sentinel.writer_epoch) == (True, 3)


# Entries that are not whole


def test_every_truncation_is_torn(golden: Path) -> None:
    for data in (
        encode(batch_of([1, 2]), batch_of([3])),
        (golden / "region" / "wal" / "1.arrow").read_bytes(),
        encode_sentinel(writer_epoch=2),
        encode_sentinel(writer_epoch=2, writer_id="writer"),
    ):
        for size in range(len(data)):
            with pytest.raises(TornEntryError):
                decode_entry(data[:size], name="here")


@pytest.mark.parametrize("columns", [SCHEMA.names, ["id", "text"]])
def test_every_changed_byte_of_our_entry_is_found(columns: list[str]) -> None:
    batch = batch_of([1, 2, 3]).select(columns)
    data = encode(batch, schema=batch.schema)
    # Those that follow begin as an entry that was read.
    assert decode_entry(data, name="here").batches == (batch,)
    generator = np.random.default_rng(1)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << int(generator.integers(8))
        with pytest.raises(CorruptDataError):
            decode_entry(bytes(changed), name="here")


def test_no_value_of_the_first_bytes_hides_that_there_is_a_checksum() -> None:
    """How many pieces of metadata a schema has stands there, and the checksum is one of them."""
    data = encode(batch_of([1, 2, 3]))
    for position in range(80):
        for value in {*range(256)} - {data[position]}:
            changed = bytearray(data)
            changed[position] = value
            with pytest.raises(CorruptDataError):
                decode_entry(bytes(changed), name="here")


@settings(deadline=None, max_examples=500)
@given(st.data())
def test_changed_bytes_of_other_entries_raise_nothing_else(
    golden: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["1.arrow", "3.arrow", "5.arrow"]))
    content = bytearray((golden / "region" / "wal" / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        entry = decode_entry(bytes(content), name="here")
    except MemWalError:
        return
    for batch in entry.batches:
        batch.validate(full=True)
        assert [len(column.to_pylist()) for column in batch.columns]


@pytest.mark.parametrize("size", [0, 1, 8, 16, 4096])
def test_zeroes_are_torn(size: int) -> None:
    # What a crashed machine leaves of a file whose length was recorded and whose bytes were not.
    with pytest.raises(TornEntryError):
        decode_entry(b"\0" * size, name="here")


def test_bytes_after_the_end_are_torn(golden: Path) -> None:
    data = (golden / "region" / "wal" / "1.arrow").read_bytes()
    with pytest.raises(TornEntryError):
        decode_entry(data + b"\xff\xff\xff\xff\0\0\0\0", name="here")


def test_a_schema_length_that_leads_outside_is_torn() -> None:
    data = bytearray(encode(batch_of([1])))
    data[4:8] = b"\xff\xff\xff\x7f"
    with pytest.raises(TornEntryError):
        decode_entry(bytes(data), name="here")


def stream(metadata: dict[str | bytes, str | bytes]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([], metadata=metadata)):
        pass
    return bytes(sink.getvalue())


def test_a_whole_entry_without_an_epoch_is_corrupt_and_not_torn() -> None:
    with pytest.raises(CorruptDataError, match="writer_epoch") as caught:
        decode_entry(stream({"generation": "1"}), name="here")
    assert not isinstance(caught.value, TornEntryError)


@pytest.mark.parametrize("number", ["", "-1", "1.0", "x", " 1", "9223372036854775808", "\u0661"])
def test_numbers_in_the_metadata_must_be_decimal(number: str) -> None:
    for key, other in (("writer_epoch", "generation"), ("generation", "writer_epoch")):
        with pytest.raises(CorruptDataError, match=key) as caught:
            decode_entry(stream({key: number, other: "1"}), name="here")
        assert not isinstance(caught.value, TornEntryError)


def test_a_writer_id_without_a_checksum_is_torn() -> None:
    with pytest.raises(TornEntryError):
        decode_entry(stream({"writer_epoch": "1", "memwal.writer_id": "w"}), name="here")


def test_what_matches_its_checksum_is_never_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been acknowledged, whatever hinders this process from reading it."""
    data = encode(batch_of([1]))

    def fail(batches: object) -> None:
        raise pa.ArrowInvalid("no thread could be started")

    monkeypatch.setattr(wal_entry, "_validate", fail)
    with pytest.raises(CorruptDataError) as raised:
        decode_entry(data, name="here")
    assert not isinstance(raised.value, TornEntryError)
