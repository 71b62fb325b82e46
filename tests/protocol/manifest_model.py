"""The versions of a region's manifest: extended by put-if-absent, trimmed from the front.

Ages are left out: what is not the newest may be trimmed at any time, so that everybody may sleep
for as long as it takes between any two requests. The steps are those of
``memwal.region.manifest_store`` and ``memwal.jobs.gc.wal``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Process(NamedTuple):
    """Somebody who commits: where it is, and the version that it looks at, or has made.

    ``late``: there was a newer one when it began to make sure that its own is the newest.
    ``hint``: what it read of it last.
    """

    at: str = "off"
    version: int = 0
    late: bool = False
    hint: int = 0


class Collector(NamedTuple):
    """A run, and the newest version that it saw."""

    at: str = "off"
    newest: int = 0


class State(NamedTuple):
    """What is stored, the true end of the history, the hint, and who is there."""

    stored: frozenset[int]
    end: int
    hint: int
    processes: tuple[Process, ...]
    collector: Collector
    trims: int = 0


@dataclass(frozen=True)
class ManifestModel:
    """The protocol, or with a safeguard taken out.

    Parameters
    ----------
    processes, versions, trims : int
        Who commits, how often together, and runs of the collector.
    without : str
        ``others``: whoever makes the first version does not look for others. ``the hint``:
        nobody asks it whether a version was made, or is, the newest. ``hint before trim``: the
        collector does not refresh it. ``compare and swap``: a hint is written over whatever it is
        by now. ``oldest first``: the collector deletes the newest of what is old first. (That a
        commit looks for the version before its own, and others for the version itself, is for
        hints that are lost.)
    """

    processes: int = 2
    versions: int = 4
    trims: int = 1
    without: str = ""

    def initial(self) -> State:
        """A region that nobody claimed."""
        return State(frozenset(), 0, 0, (Process(),) * self.processes, Collector())

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """One request of somebody. Whoever dies is one who sleeps for ever."""
        for number, process in enumerate(state.processes):
            for name, after, become in self._commit(state, process):
                yield f"process:{name}", _with(after, number, become)
        yield from self._collect(state, state.collector)

    def broken(self, state: State) -> str | None:
        """Who believes that its version counts, or is the newest, is right."""
        for process in state.processes:
            if process.at == "made" and process.version < 0:
                return "a commit counts that nobody sees"
            if process.at == "is sure" and process.late:
                return "an old version is taken for the newest"
        return None

    def _commit(self, state: State, me: Process) -> Iterator[tuple[str, State, Process]]:
        if me.at == "off":
            if state.end < self.versions:
                at = "probes" if state.hint else "lists"
                yield "reads the hint", state, Process(at, state.hint)
        elif me.at == "lists":
            newest = max(state.stored, default=0)
            yield "lists", state, Process("probes" if newest else "creates", newest)
        elif me.at == "probes":
            if me.version + 1 in state.stored:
                yield "finds a newer one", state, me._replace(version=me.version + 1)
            else:
                yield "finds no newer one", state, me._replace(at="reads")
        elif me.at == "reads":
            if me.version in state.stored:
                yield "reads", state, me._replace(at="creates")
            else:
                yield "finds it trimmed", state, Process("lists")
        elif me.at == "creates":
            made = me.version + 1
            if made in state.stored:
                yield "is too late", state, Process()
            else:
                counts = made == state.end + 1
                after = state._replace(
                    stored=state.stored | {made}, end=made if counts else state.end
                )
                # A number below 0 stands in a gap.
                yield "creates", after, Process("reads back", made if counts else -made)
        elif me.at == "reads back":
            yield "reads the hint back", state, me._replace(at="looks behind", hint=state.hint)
        elif me.at == "looks behind":
            seen = self._is_at_the_end(state, abs(me.version), me.hint)
            yield "looks behind", state, me._replace(at="made") if seen else Process()
        elif me.at == "made":
            swaps = me.hint == state.hint or self.without == "compare and swap"
            hint = abs(me.version) if swaps else state.hint
            yield "hints", state._replace(hint=hint), me._replace(at="holds", hint=0)
            yield "fails to hint", state, me._replace(at="holds", hint=0)
        elif me.at in ("holds", "is sure"):
            late = state.end > me.version
            if me.version + 1 in state.stored:
                yield "is superseded", state, Process()
            else:
                yield "finds none behind its own", state, Process("asks", me.version, late)
            yield "gives up", state, Process()
        elif me.at == "asks":
            there = me.version in state.stored or self.without == "the version itself"
            yield (
                "looks for its own",
                state,
                me._replace(at="asks the hint") if there else Process(),
            )
        elif me.at == "asks the hint":
            past = self._is_hinted_past(state, me.version, state.hint)
            yield "asks the hint", state, Process() if past else me._replace(at="is sure")

    def _is_at_the_end(self, state: State, version: int, hint: int) -> bool:
        if version == 1:
            return max(state.stored) == 1 or self.without == "others"
        return version - 1 in state.stored and not self._is_hinted_past(state, version, hint)

    def _is_hinted_past(self, state: State, version: int, hint: int) -> bool:
        return self.without != "the hint" and hint > version and hint in state.stored

    def _collect(self, state: State, run: Collector) -> Iterator[tuple[str, State]]:
        old = sorted(version for version in state.stored if version < run.newest)
        if run.at == "off":
            if state.trims < self.trims and state.stored:
                at = "trims" if self.without == "hint before trim" else "hints"
                after = Collector(at, max(state.stored))
                yield "collector:lists", state._replace(collector=after, trims=state.trims + 1)
        elif run.at == "hints":
            after = state._replace(hint=run.newest, collector=run._replace(at="trims"))
            yield "collector:hints", after
        elif old:
            gone = old[-1] if self.without == "oldest first" else old[0]
            yield "collector:trims", state._replace(stored=state.stored - {gone})
            yield "collector:dies", state._replace(collector=Collector())
        else:
            yield "collector:ends", state._replace(collector=Collector())


def _with(state: State, number: int, process: Process) -> State:
    processes = list(state.processes)
    processes[number] = process
    # In one order: which of them is where makes no difference, and half of the states.
    return state._replace(processes=tuple(sorted(processes)))
