"""The log of a region, spoiled in one way each."""

import os

import pyarrow as pa
import pytest
from support.data.tables import REGION, append_foreign, log, manifest, rows, without_key
from support.oracles import native

import memwal
from memwal.errors import CorruptDataError
from memwal.format.paths import region_dir, wal_key
from memwal.format.wal_encoder import encode_sentinel
from memwal.format.wal_entry import decode_entry


def last(spoiled):
    return max(log(spoiled.table))


def test_a_gap_in_what_is_to_be_replayed(spoiled):
    spoiled.entry(last(spoiled) - 1).unlink()
    finding = spoiled.only("log-gap")
    assert str(last(spoiled) - 1) in finding.text.split()
    assert spoiled.only("log-gap", quick=True).region == REGION


def test_a_gap_in_what_is_flushed(spoiled):
    spoiled.entry(2).unlink()
    assert spoiled.only("log-hole").severity.value == "warning"


def test_a_log_trimmed_from_the_front(spoiled):
    for position in range(1, manifest(spoiled.table).replay_after + 1):
        spoiled.entry(position).unlink()
    assert spoiled.codes() == []


def test_an_empty_log(spoiled):
    for position in log(spoiled.table):
        spoiled.entry(position).unlink()
    spoiled.only("log-tip-lost")


@pytest.mark.few(2)
@pytest.mark.parametrize("client", ["ours", "native"])
@pytest.mark.parametrize("size", [0, 100, -1])
def test_a_torn_entry_with_rows_behind(spoiled, size):
    path = spoiled.entry(last(spoiled) - 1)
    path.write_bytes(path.read_bytes()[:size])
    spoiled.only("log-entry-damaged")
    assert spoiled.codes(quick=True) == []


def test_a_flipped_bit_with_rows_behind(spoiled):
    path = spoiled.entry(last(spoiled) - 1)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    spoiled.only("log-entry-damaged")


@pytest.mark.few(1)
@pytest.mark.parametrize("client", ["ours", "native"])
def test_a_torn_tip_is_fine(spoiled):
    path = spoiled.entry(last(spoiled))
    path.write_bytes(path.read_bytes()[:-7])
    assert spoiled.only("log-tip-torn").severity.value == "information"
    assert spoiled.verify().clean


def test_a_torn_entry_whose_rows_are_flushed(spoiled):
    spoiled.entry(2).write_bytes(b"")
    spoiled.only("log-entry-spoiled")


def test_an_entry_that_does_not_say_its_epoch(spoiled):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("id", pa.int64())])):
        pass
    spoiled.entry(last(spoiled)).write_bytes(sink.getvalue())
    spoiled.only("log-entry-damaged")


def test_a_claim_that_was_overtaken(spoiled):
    at = last(spoiled) + 1
    spoiled.entry(at).write_bytes(encode_sentinel(writer_epoch=1, writer_id="late"))
    assert spoiled.only("log-claim-overtaken").severity.value == "information"
    assert spoiled.verify().clean


def test_rows_of_an_older_writer_behind_a_newer_one(spoiled):
    with memwal.open(spoiled.table.uri).writer() as newer:
        newer.claim()
    older = next(
        data
        for data in (spoiled.entry(at).read_bytes() for at in range(1, last(spoiled)))
        if not decode_entry(data, name="").is_sentinel
    )
    spoiled.entry(last(spoiled) + 1).write_bytes(older)
    assert "log-epoch-falls" in spoiled.codes()


def test_an_epoch_that_nobody_claimed(spoiled):
    at = last(spoiled) + 1
    spoiled.entry(at).write_bytes(encode_sentinel(writer_epoch=99, writer_id="nobody"))
    spoiled.entry(at + 1).write_bytes(encode_sentinel(writer_epoch=100, writer_id="nobody"))
    finding = spoiled.only("log-epoch-ahead")
    assert finding.text.split().count("100") == 1
    assert finding.object == wal_key(REGION, at)


def test_a_process_that_woke_late_leaves_a_stray(spoiled):
    spoiled.entry(2).unlink()
    later = spoiled.entry(3).stat().st_mtime + 60
    os.utime(spoiled.entry(1), (later, later))
    assert spoiled.only("log-stray").severity.value == "information"


def test_a_crash_brings_back_what_was_collected(spoiled):
    entries = {position: spoiled.entry(position).read_bytes() for position in log(spoiled.table)}
    native.collect_all(spoiled.table)
    collected = sorted(entries.keys() - log(spoiled.table).keys())
    spoiled.entry(collected[0]).write_bytes(entries[collected[0]])
    spoiled.entry(collected[-1]).write_bytes(entries[collected[-1]])
    assert len(collected) > 2
    assert spoiled.only("log-stray").severity.value == "information"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("client", "damage"),
    [
        ("ours", "gap"),
        ("native", "torn"),
        pytest.param("ours", "torn", marks=pytest.mark.slow),
        pytest.param("native", "gap", marks=pytest.mark.slow),
    ],
)
def test_what_was_given_up_is_on_record(spoiled, damage):
    path = spoiled.entry(last(spoiled) - 1)
    if damage == "gap":
        path.unlink()
    else:
        path.write_bytes(b"")
    assert spoiled.codes() == ["log-gap" if damage == "gap" else "log-entry-damaged"]
    with spoiled.table.writer(replay=False) as writer:
        writer.upsert(rows({5: 5}))
        writer.flush()
    assert spoiled.codes() == []
    (record,) = spoiled.path(f"{region_dir(REGION)}/abandoned").iterdir()
    record.write_text("{")
    assert "abandoned-unreadable" in spoiled.codes()


def test_rows_without_a_key(spoiled):
    position = append_foreign(spoiled.table, without_key({7: 1, 8: 1, 9: 1}, 1))
    finding = spoiled.only("log-rows-unusable")
    assert finding.object == wal_key(REGION, position)
    assert finding.region == REGION
    assert "id" in finding.text
    with pytest.raises(CorruptDataError) as caught, spoiled.table.writer() as writer:
        writer.upsert(rows({1: 1}))
    for named in (str(REGION), f"entry {position} ", "row 1", "--repair"):
        assert named in str(caught.value)
    assert spoiled.codes(quick=True) == []


def test_rows_that_do_not_fit_the_table(spoiled):
    append_foreign(spoiled.table, pa.record_batch({"n": [1]}))
    spoiled.only("log-entry-unfit")


def test_rows_without_a_key_that_are_flushed(spoiled):
    append_foreign(spoiled.table, without_key({7: 1}, 0), generation=1)
    assert spoiled.codes() == []
