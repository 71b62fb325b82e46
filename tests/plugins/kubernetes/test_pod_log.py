"""Reading a log bit by bit: every line once."""

from __future__ import annotations

import random
from datetime import datetime

from memwal_airflow.kubernetes.pod_log import LogPosition


def test_a_log_is_read_from_the_second_of_its_last_line_on() -> None:
    position = LogPosition()
    assert position.since is None
    first = "2026-11-22T01:00:05.25Z one\n2026-11-22T01:00:05.5Z two\n"
    assert list(position.new_lines(first)) == ["one", "two"]
    assert position.since == "2026-11-22T01:00:05Z"
    # The server has no parts of seconds, and leaves out zeros at the end of a fraction.
    more = "2026-11-22T01:00:05.500000001Z three\n2026-11-22T01:00:06Z four\n"
    assert list(position.new_lines(first + more)) == ["three", "four"]
    assert position.since == "2026-11-22T01:00:06Z"


def test_lines_of_one_moment_are_told_apart_by_their_number() -> None:
    position = LogPosition()
    lines = [f"2026-11-22T01:00:05.7Z {n}\n" for n in range(4)]
    assert list(position.new_lines("".join(lines[:2]))) == ["0", "1"]
    assert list(position.new_lines("".join(lines[:3]))) == ["2"]
    assert list(position.new_lines("".join(lines))) == ["3"]
    assert list(position.new_lines("".join(lines))) == []


def test_a_line_is_taken_when_it_is_whole() -> None:
    position = LogPosition()
    text = "2026-11-22T01:00:05.7Z begun"
    assert list(position.new_lines(text)) == []
    assert list(position.new_lines(text, ended=True)) == ["begun"]
    assert list(position.new_lines(f"{text}\n")) == []


def test_zones_empty_lines_and_what_is_no_line() -> None:
    position = LogPosition()
    text = (
        "failed to watch file\n2026-11-22T03:00:05.1+02:00 a  b \n2026-11-22T01:00:05.2Z\n"
        "2026-11-22T01:00:05.3Z \n"
    )
    assert list(position.new_lines(text)) == ["a  b ", "", ""]
    assert position.since == "2026-11-22T01:00:05Z"


def test_no_line_is_lost_or_repeated_however_it_is_read() -> None:
    chance = random.Random(7)
    at, lines = 0, []
    for number in range(400):
        at += chance.choice((0, 0, 1, 400_000_000))
        seconds, nanos = divmod(at, 10**9)
        lines.append(
            (seconds, f"2026-11-22T01:{seconds // 60:02}:{seconds % 60:02}.{nanos:09}Z {number}\n")
        )
    position, read, end = LogPosition(), [], 0
    while end < len(lines):
        end += chance.randrange(9)
        since = position.since
        first = 0
        if since is not None:
            moment = datetime.fromisoformat(since)
            first = moment.minute * 60 + moment.second
        answer = "".join(line for seconds, line in lines[:end] if seconds >= first)
        read += position.new_lines(answer)
    assert read == [str(number) for number in range(400)]
