"""The progress bar runs the tasks, and is there on a terminal only."""

from __future__ import annotations

import io

import pytest

from memwal.cli.output import counter, progress


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_tasks_run_in_order(monkeypatch, stream):
    monkeypatch.setattr("sys.stderr", stream())
    with progress("working") as run:
        assert run([3, 1, 2], lambda task: task * 10) == [30, 10, 20]
        assert run([], str) == []


def test_it_is_shown_on_a_terminal_only(monkeypatch):
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr("sys.stderr", stream)
        with progress("working") as run:
            run([1, 2], str)
        assert ("working" in stream.getvalue()) is shown
        assert ("2/2" in stream.getvalue()) is shown


def test_an_error_passes_through(monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    with pytest.raises(KeyError), progress("working") as run:
        run([{}], lambda task: task["x"])


def test_a_counter_is_told(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stream)
        with counter("merging") as show:
            show("merging", 3, 7)
            show("indexing", 7, 7)
        assert ("indexing" in stream.getvalue()) is shown
        assert ("7/7" in stream.getvalue()) is shown
