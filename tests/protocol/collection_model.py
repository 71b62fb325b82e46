"""What a collector takes of flushed generations, next to readers, tags, merges and index builds.

Generations are flushed, merged, indexed, dropped from the manifest, and deleted a grace period
later. A reader reads the manifest, then the base table, then the generations one by one, and may
stand still anywhere. Time goes by in steps of one grace period. What is modelled is
``memwal.jobs.gc`` and the plan of ``memwal.reader``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Version(NamedTuple):
    """A version of the base table: up to where it has merged, and its index caught up."""

    merged: int = 0
    caught_up: int = 0


class Reader(NamedTuple):
    """A search: ``needs`` are the generations still to be opened, ``covers`` what it will show."""

    at: str = "off"
    named: tuple[int, ...] = ()
    version: Version = Version()
    needs: tuple[int, ...] = ()
    promised: int = 0
    late: bool = False


class Collector(NamedTuple):
    """What a run knows: how much is superfluous, and which folders it may delete."""

    at: str = "off"
    superfluous: int = 0
    expired: tuple[int, ...] = ()


class State(NamedTuple):
    """``named``: generations in the manifest; ``files``: their folders. ``dropped`` are no longer
    named, ``old`` have been that for a grace period."""

    flushed: int = 0
    named: tuple[int, ...] = ()
    files: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    old: tuple[int, ...] = ()
    base: Version = Version()
    retained: tuple[Version, ...] = ()
    tagged: Version | None = None
    reader: Reader = Reader()
    collector: Collector = Collector()
    failed: bool = False
    waits: int = 0
    deaths: int = 0


@dataclass(frozen=True)
class CollectionModel:
    """The protocol, or with one of its safeguards taken out.

    Parameters
    ----------
    generations, waits, deaths : int
        How many; a wait is one grace period.
    retention : bool
        Whether older versions of the base table are kept for a grace period, or not at all.
    without : str
        ``grace``: a folder goes with its name. ``catch-up``: what is merged counts as superfluous.
        ``tags``, ``retained versions``: only the newest version counts. ``dropping first``: folders
        are deleted before the manifest stops naming them. ``planning again``: a reader leaves out
        what it does not find.
    """

    generations: int = 2
    waits: int = 2
    deaths: int = 1
    retention: bool = True
    without: str = ""

    def initial(self) -> State:
        """An empty table."""
        return State()

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Everybody goes on."""
        yield from self._others(state)
        yield from self._read(state, state.reader)
        yield from self._collect(state, state.collector)

    def broken(self, state: State) -> str | None:
        """Nobody misses what he may still read."""
        if state.failed:
            return "a reader shows less than there was"
        if not set(state.named) <= set(state.files):
            return "the manifest names a generation that is gone"
        reader = state.reader
        if not reader.late and not set(reader.needs) <= set(state.files):
            return "a reader within the grace period finds a file gone"
        for version in (state.base, *state.retained, *([state.tagged] if state.tagged else [])):
            if any(n not in state.files for n in range(min(version) + 1, state.flushed + 1)):
                return "a generation is gone that a version needs"
        return None

    def _others(self, state: State) -> Iterator[tuple[str, State]]:
        base = state.base
        if state.flushed < self.generations:
            number = state.flushed + 1
            yield (
                "writer:flushes",
                state._replace(
                    flushed=number, named=(*state.named, number), files=(*state.files, number)
                ),
            )
        if base.merged < state.flushed:
            merged = base._replace(merged=base.merged + 1)
            yield "merger:merges", self._with_base(state, merged)
        if base.caught_up < base.merged:
            indexed = base._replace(caught_up=base.merged)
            yield "builder:indexes", self._with_base(state, indexed)
        if state.tagged is None:
            # The newest version, or one that retention still holds.
            for version in {base, *state.retained}:
                yield "user:tags", state._replace(tagged=version)
        if state.waits < self.waits:
            yield (
                "time:a grace period goes by",
                state._replace(
                    waits=state.waits + 1,
                    old=tuple(sorted({*state.old, *state.dropped})),
                    dropped=(),
                    retained=(),
                    reader=state.reader._replace(late=state.reader.at != "off"),
                ),
            )

    def _with_base(self, state: State, base: Version) -> State:
        kept = (*state.retained, state.base) if self.retention else ()
        return state._replace(base=base, retained=kept)

    def _read(self, state: State, me: Reader) -> Iterator[tuple[str, State]]:
        if me.at == "off":
            begun = Reader("manifest", named=state.named, promised=state.flushed)
            yield "reader:reads the manifest", state._replace(reader=begun)
        elif me.at == "manifest":
            # Rows that the index does not cover come from their generations.
            needs = tuple(number for number in me.named if number > state.base.caught_up)
            opens = me._replace(at="opens", version=state.base, needs=needs)
            yield "reader:reads the base table", state._replace(reader=opens)
        elif me.needs:
            number = me.needs[0]
            if number in state.files or self.without == "planning again":
                failed = number not in state.files and number > me.version.merged
                on = me._replace(needs=me.needs[1:])
                yield "reader:opens", state._replace(reader=on, failed=failed)
            else:
                yield "reader:plans again", state._replace(reader=Reader())
        else:
            shown = {*range(1, me.version.merged + 1), *me.named}
            failed = not shown >= set(range(1, me.promised + 1))
            yield "reader:answers", state._replace(reader=Reader(), failed=failed)

    def _collect(self, state: State, me: Collector) -> Iterator[tuple[str, State]]:
        if me.at != "off" and state.deaths < self.deaths:
            yield "collector:dies", state._replace(collector=Collector(), deaths=state.deaths + 1)
        if me.at == "off":
            versions = [state.base]
            if self.without != "retained versions":
                versions += state.retained
            if self.without != "tags" and state.tagged is not None:
                versions.append(state.tagged)
            whole = self.without == "catch-up"
            covered = min(v.merged if whole else min(v) for v in versions)
            begun = Collector("drops", covered, state.old)
            yield "collector:reads what is in use", state._replace(collector=begun)
        elif me.at == "drops":
            gone = tuple(number for number in state.named if number <= me.superfluous)
            if self.without == "dropping first" and gone:
                files = tuple(number for number in state.files if number not in gone)
                yield "collector:deletes", state._replace(files=files, collector=Collector())
                return
            named = tuple(number for number in state.named if number > me.superfluous)
            expired = tuple({*me.expired, *gone}) if self.without == "grace" else me.expired
            deletes = me._replace(at="deletes", expired=tuple(sorted(expired)))
            yield (
                "collector:drops",
                state._replace(
                    named=named,
                    dropped=tuple(sorted({*state.dropped, *gone})),
                    collector=deletes,
                ),
            )
        elif me.expired:
            files = tuple(number for number in state.files if number != me.expired[0])
            on = me._replace(expired=me.expired[1:])
            yield "collector:deletes", state._replace(files=files, collector=on)
        else:
            yield "collector:ends", state._replace(collector=Collector())
