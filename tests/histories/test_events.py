"""What processes write down is read back as what happened, also when they were killed."""

from __future__ import annotations

from pathlib import Path

from histories.events import UNKNOWN, Level, Recorder, Write, read_records

FAR = (Level.FLUSHED, Level.FLUSHED)


def test_a_write_is_acknowledged_refused_or_unknown_for_each_key(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "writer.1.jsonl")
    call = recorder.begin_write({1: 5, 2: 5, 3: 5}, {1: 1, 2: 1, 3: 1})
    recorder.end_write(call, done=[1], refused=[2])

    known, unknown = read_records(tmp_path).history.writes

    assert (known.who, known.key, known.value, known.sure) == ("writer.1", 1, 5, True)
    assert known.begin < known.end < UNKNOWN
    assert unknown == Write("writer.1", 3, 5, known.begin, UNKNOWN, sure=False)


def test_the_next_claim_ends_what_was_under_way(tmp_path: Path) -> None:
    first, second = (Recorder(tmp_path / f"writer.{number}.jsonl") for number in (1, 2))
    first.claimed({1: 1, 2: 1})
    first.begin_write({1: None, 2: None}, {1: 1, 2: 1})
    first.claimed({2: 1})
    second.claimed({1: 2})

    under_way = {write.key: write for write in read_records(tmp_path).history.writes}

    assert under_way[1].begin < under_way[1].end < UNKNOWN
    assert under_way[2].end == UNKNOWN


def test_reads_bounds_and_failures_are_kept(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "reader.1.jsonl")
    recorder.read(10, 20, {1: 5, 2: None}, levels={1: FAR, 2: FAR}, stale=2.0)
    recorder.bound(Level.FLUSHED, 30, [1])
    recorder.failed("reading", OSError("gone"))
    recorder.wrong("a key twice")

    records = read_records(tmp_path)

    assert [(read.key, read.value, read.stale) for read in records.history.reads] == [
        (1, 5, 2e9),
        (2, None, 2e9),
    ]
    (bound,) = records.history.bounds
    assert (bound.begin, bound.keys) == (30, {1})
    assert records.failures == [("reader.1", "reading", "OSError", "gone")]
    assert records.wrong == ["reader.1: a key twice"]
