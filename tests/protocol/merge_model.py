"""Merges of one region by mergers that race, die and pause, next to somebody who writes directly.

The region has generations with upserts and deletes of a few keys, and gets more meanwhile. At every
version of the base table, what a merging reader sees must be what was written. The steps are those
of ``memwal.jobs.merge.commit``: read progress and plan, delete pass, look again, marked
commit; and those of ``memwal.jobs.merge.divided``: rewrite, commit the rows, record the progress.
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
    # What made it: a delete pass, a marked commit, the rows of a divided merge, or another.
    made_by: str = ""
    upto: int = 0  # of the rows of a divided merge


class Merger(NamedTuple):
    """What a merger knows: the version that it read, and up to which generation it merges."""

    at: str = "off"
    read: int = 0
    upto: int = 0
    rewritten: tuple[tuple[str, int], ...] = ()


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
        ``order``: a merger takes the newest generation first. ``progress at the deletes``: the
        delete pass is rebased over progress. ``progress at the rows``: a divided merge commits its
        rows whatever was merged since. ``rows since the deletes``: a merger does not look for rows
        of a divided merge that came after its delete pass. ``matching again``: a divided merge
        deletes what it found in an earlier version. ``other merges``: it records its progress
        whatever came after its rows; ``delete passes``: after a delete pass.
    divided : int
        How many of the mergers divide their merges.
    commits_of_rows : int
        How often these commit rows at most. Two of them could disturb each other for ever.
    """

    mergers: int = 2
    divided: int = 0
    commits_of_rows: int = 2
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
            for name, versions, changed in self._steps_of(state, merger, number):
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
        self, state: State, me: Merger, number: int
    ) -> Iterator[tuple[str, tuple[Version, ...], Merger]]:
        versions, newest = state.versions, len(state.versions) - 1
        if me.at == "off":
            merged = versions[newest].merged
            rows = sum(version.made_by == "rows" for version in versions)
            for upto in range(merged + 1, state.flushed + 1):
                if number < self.divided and rows == self.commits_of_rows:
                    continue
                if number < self.divided:
                    rewritten = tuple(sorted(self._brought(merged, upto)))
                    yield "rewrites", versions, Merger("rows", newest, upto, rewritten)
                else:
                    yield "plans", versions, Merger("delete", newest, upto)
            if number < self.divided:
                yield from self._help(versions)
            return
        if state.deaths < self.deaths:
            yield "dies", versions, Merger()
        if me.at == "delete":
            yield from self._delete(versions, me)
        elif me.at == "look":
            # The delete pass was of the version read first; what counts is the progress now.
            wanted = versions[me.read].merged == versions[newest].merged
            since = {version.made_by for version in versions[me.read + 1 :]}
            if self.without == "rows since the deletes":
                since.discard("rows")
            if (wanted and "rows" not in since) or self.without == "looking again":
                yield "looks again", versions, me._replace(at="commit", read=newest)
            else:
                yield "starts again", versions, Merger()
        elif me.at == "commit":
            yield from self._commit(versions, me)
        elif me.at == "rows":
            yield from self._commit_rows(versions, me)
        elif me.at == "record":
            yield from self._record(versions, me)

    def _delete(
        self, versions: tuple[Version, ...], me: Merger
    ) -> Iterator[tuple[str, tuple[Version, ...], Merger]]:
        read, newest = versions[me.read], versions[-1]
        gone = {key for key, value in self._brought(read.merged, me.upto) if value == DELETED}
        if not gone:
            yield "has nothing to delete", versions, me._replace(at="commit")
            return
        touched = any(_of(read, key) != _of(newest, key) for key in gone)
        merged = read.merged != newest.merged and self.without != "progress at the deletes"
        if (touched or merged) and self.without != "pinned deletes":
            yield "has its deletes refused", versions, Merger()
            return
        rows = tuple(row for row in newest.rows if row[0] not in gone)
        after = Version(rows, newest.merged, "delete pass")
        yield "deletes", (*versions, after), me._replace(at="look")

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
        after = Version(tuple(sorted((*kept, *rows.items()))), me.upto, "marked commit")
        yield "commits", (*versions, after), Merger()

    def _commit_rows(
        self, versions: tuple[Version, ...], me: Merger
    ) -> Iterator[tuple[str, tuple[Version, ...], Merger]]:
        read, newest = versions[me.read], versions[-1]
        if read.merged != newest.merged and self.without != "progress at the rows":
            yield "drops what it rewrote", versions, Merger()
            return
        # The rows of the version that is replaced are matched, and no other version may be.
        matched = read if self.without == "matching again" else newest
        keys = {key for key, _ in me.rewritten}
        gone = {row for row in matched.rows if row[0] in keys}
        kept = [row for row in newest.rows if row not in gone]
        rows = tuple(sorted([*kept, *(row for row in me.rewritten if row[1] != DELETED)]))
        after = Version(rows, newest.merged, "rows", me.upto)
        yield "commits rows", (*versions, after), Merger("record", len(versions), me.upto)

    def _record(
        self, versions: tuple[Version, ...], me: Merger
    ) -> Iterator[tuple[str, tuple[Version, ...], Merger]]:
        newest = versions[-1]
        if self._is_undisturbed(versions, me.read):
            after = Version(newest.rows, max(me.upto, newest.merged))
            yield "records", (*versions, after), Merger()
        else:
            yield "records nothing", versions, Merger()

    def _help(
        self, versions: tuple[Version, ...]
    ) -> Iterator[tuple[str, tuple[Version, ...], Merger]]:
        """Record the progress of a merger that may be dead."""
        for number, version in enumerate(versions):
            is_ahead = version.made_by == "rows" and version.upto > versions[-1].merged
            if is_ahead and self._is_undisturbed(versions, number):
                after = Version(versions[-1].rows, version.upto)
                yield "helps", (*versions, after), Merger()

    def _is_undisturbed(self, versions: tuple[Version, ...], own: int) -> bool:
        if self.without == "other merges":
            return True
        disturbing = {"rows", "delete pass", "marked commit"}
        if self.without == "delete passes":
            disturbing.remove("delete pass")
        return versions[-1].merged == versions[own].merged and all(
            version.made_by not in disturbing for version in versions[own + 1 :]
        )

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
                after = Version(tuple(sorted([*rows, (DIRECT, 9)])), newest.merged)
                versions = (*state.versions, after)
                yield "direct:writes", state._replace(versions=versions, direct="done")


def _of(version: Version, key: str) -> list[int]:
    return [value for name, value in version.rows if name == key]


def _over(rows: dict[str, int], merged: int, flushed: int) -> dict[str, int]:
    """What a reader sees that puts the generations behind ``merged`` over rows."""
    for generation in GENERATIONS[merged:flushed]:
        rows = {**rows, **dict(generation)}
    return {key: value for key, value in rows.items() if value != DELETED}
