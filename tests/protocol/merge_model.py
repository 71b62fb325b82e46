"""Merges of one region by mergers that race, die and pause, next to somebody who writes directly.

The region has generations with upserts and deletes of a few keys, and gets more meanwhile. At every
version of the base table, what a merging reader sees must be what was written. The steps are those
of ``memwal.jobs.merge.commit``: read progress and plan, delete pass, look again, marked
commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

DELETED = 0

# What each generation holds: key and value, or DELETED. Keys come back after their deletion.
GENERATIONS = (
    (("a", 1), ("b", 1)),
    (("a", DELETED), ("c", 2)),
    (("a", 3), ("b", DELETED)),
)

# Which key is written directly: one that a generation inserts as well.
DIRECT = "c"


class Version(NamedTuple):
    """A version of the base table: rows, which may repeat a key by mistake, and progress."""

    rows: tuple[tuple[str, int], ...]
    merged: int


class Merger(NamedTuple):
    """What a merger knows: the version that it read, and up to which generation it merges."""

    at: str = "off"
    read: int = 0
    upto: int = 0


class State(NamedTuple):
    """All versions, how many generations there are, and the mergers."""

    versions: tuple[Version, ...]
    flushed: int
    mergers: tuple[Merger, ...]
    direct: str = "off"
    direct_read: int = 0
    deaths: int = 0


@dataclass(frozen=True)
class MergeModel:
    """The protocol, or with one of its safeguards taken out.

    Parameters
    ----------
    mergers, deaths : int
        How many.
    direct : bool
        Whether somebody inserts a key directly, which the region inserts as well. What is there
        afterwards is then one row of it, from either.
    without : str
        ``pinned deletes``: the delete pass runs on whatever version is newest. ``looking again``:
        nobody looks at the progress behind the delete pass. ``progress at the commit``: the marked
        commit is rebased over any other. ``keys that came``: it is rebased over inserted keys.
        ``order``: a merger takes the newest generation first.
    """

    mergers: int = 2
    deaths: int = 1
    direct: bool = False
    without: str = ""

    def initial(self) -> State:
        """An empty base table, and one generation."""
        direct = "ready" if self.direct else "off"
        return State((Version((), 0),), 1, (Merger(),) * self.mergers, direct)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """A merger goes on or dies, a generation is flushed, or a key is inserted directly."""
        if state.flushed < len(GENERATIONS):
            yield "writer:flushes", state._replace(flushed=state.flushed + 1)
        for number, merger in enumerate(state.mergers):
            for name, versions, changed in self._steps_of(state, merger):
                mergers = (*state.mergers[:number], changed, *state.mergers[number + 1 :])
                deaths = state.deaths + (name == "dies")
                after = state._replace(versions=versions, mergers=mergers, deaths=deaths)
                yield f"{number}:{name}", after
        yield from self._direct(state)

    def broken(self, state: State) -> str | None:
        """Progress never falls, no key is there twice, and readers see what was written."""
        newest = state.versions[-1]
        if len(state.versions) > 1 and newest.merged < state.versions[-2].merged:
            return "progress fell back"
        keys = [key for key, _ in newest.rows]
        if len(set(keys)) < len(keys):
            return "a key is in the base table twice"
        seen = _over(dict(newest.rows), newest.merged, state.flushed)
        written = _over({}, 0, state.flushed)
        if self.direct:
            if any(DIRECT in dict(v.rows) for v in state.versions[:-1]) and DIRECT not in seen:
                return "a row that was written directly is lost"
            seen.pop(DIRECT, None)
            written.pop(DIRECT, None)
        return None if seen == written else "readers do not see what was written"

    def _steps_of(
        self, state: State, me: Merger
    ) -> Iterator[tuple[str, tuple[Version, ...], Merger]]:
        versions, newest = state.versions, len(state.versions) - 1
        if me.at == "off":
            merged = versions[newest].merged
            for upto in range(merged + 1, state.flushed + 1):
                yield "plans", versions, Merger("delete", newest, upto)
            return
        if state.deaths < self.deaths:
            yield "dies", versions, Merger()
        if me.at == "delete":
            yield from self._delete(versions, me)
        elif me.at == "look":
            # The delete pass was of the version read first; what counts is the progress now.
            wanted = versions[me.read].merged == versions[newest].merged
            if wanted or self.without == "looking again":
                yield "looks again", versions, me._replace(at="commit", read=newest)
            else:
                yield "starts again", versions, Merger()
        elif me.at == "commit":
            yield from self._commit(versions, me)

    def _delete(
        self, versions: tuple[Version, ...], me: Merger
    ) -> Iterator[tuple[str, tuple[Version, ...], Merger]]:
        read, newest = versions[me.read], versions[-1]
        gone = {key for key, value in self._brought(read.merged, me.upto) if value == DELETED}
        if not gone:
            yield "has nothing to delete", versions, me._replace(at="commit")
            return
        touched = any(_of(read, key) != _of(newest, key) for key in gone)
        if touched and self.without != "pinned deletes":
            yield "has its deletes refused", versions, Merger()
            return
        rows = tuple(row for row in newest.rows if row[0] not in gone)
        yield "deletes", (*versions, newest._replace(rows=rows)), me._replace(at="look")

    def _commit(
        self, versions: tuple[Version, ...], me: Merger
    ) -> Iterator[tuple[str, tuple[Version, ...], Merger]]:
        read, newest = versions[me.read], versions[-1]
        rows = {k: v for k, v in self._brought(read.merged, me.upto) if v != DELETED}
        known = {key for key, _ in read.rows}
        came = {key for key, _ in newest.rows} - known
        # Lance sees by itself when two commits update one row.
        updated = any(_of(read, key) != _of(newest, key) for key in rows if key in known)
        refused = (
            updated
            or (newest.merged != read.merged and self.without != "progress at the commit")
            or (bool(came) and self.without not in ("keys that came", "progress at the commit"))
        )
        if refused:
            yield "has its commit refused", versions, Merger()
            return
        kept = tuple(row for row in newest.rows if row[0] not in rows or row[0] not in known)
        after = Version(tuple(sorted((*kept, *rows.items()))), me.upto)
        yield "commits", (*versions, after), Merger()

    def _brought(self, merged: int, upto: int) -> list[tuple[str, int]]:
        """Newest row of each key in the generations behind ``merged``."""
        first = upto - 1 if self.without == "order" else merged
        brought: dict[str, int] = {}
        for generation in GENERATIONS[first:upto]:
            brought.update(generation)
        return list(brought.items())

    def _direct(self, state: State) -> Iterator[tuple[str, State]]:
        if state.direct == "ready":
            read = len(state.versions) - 1
            yield "direct:reads", state._replace(direct="reads", direct_read=read)
        elif state.direct == "reads":
            read, newest = state.versions[state.direct_read], state.versions[-1]
            if _of(read, DIRECT) != _of(newest, DIRECT):
                yield "direct:is refused", state._replace(direct="ready", direct_read=0)
            else:
                rows = [row for row in newest.rows if row[0] != DIRECT]
                after = newest._replace(rows=tuple(sorted([*rows, (DIRECT, 9)])))
                versions = (*state.versions, after)
                yield "direct:writes", state._replace(versions=versions, direct="done")


def _of(version: Version, key: str) -> list[int]:
    return [value for name, value in version.rows if name == key]


def _over(rows: dict[str, int], merged: int, flushed: int) -> dict[str, int]:
    """What a reader sees that puts the generations behind ``merged`` over rows."""
    for generation in GENERATIONS[merged:flushed]:
        rows = {**rows, **dict(generation)}
    return {key: value for key, value in rows.items() if value != DELETED}
