"""Fresh reads of one region, next to a writer, a takeover, flushes, merges and collections.

A fresh reader reads the manifest, then the base table, then the log behind the manifest's
``replay_after``, entry by entry, and may pause anywhere. Where it finds no entry, it looks at the
manifest again, and lists the log if that has changed. What it knows of the log it keeps for its
next read. Each write has a key of its own, which must be there, and all of them share one key,
whose newest row must be shown. The steps are those of :func:`memwal.reader.sources.plan.plan_read`
and :class:`memwal.lsm.wal.follow.LogFollower`. Appends, claims and flushes are atomic here;
:mod:`protocol.log_model` takes them apart. Nothing has a grace period.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Manifest(NamedTuple):
    """``generation`` is the one that the region writes; ``flushed`` has number and writes."""

    replay_after: int = 0
    generation: int = 1
    flushed: tuple[tuple[int, tuple[int, ...]], ...] = ()


class Base(NamedTuple):
    """Progress of the region, and its merged writes."""

    merged: int = 0
    writes: tuple[int, ...] = ()


class Writer(NamedTuple):
    """MemTables, oldest first: number, and position of the newest entry. The last is active."""

    tables: tuple[tuple[int, int], ...] = ((1, 0),)


class Reader(NamedTuple):
    """A read, and what is known of the log: entries behind ``known_after``."""

    at: str = "off"
    promised: int = 0
    manifest: Manifest = Manifest()
    base: Base = Base()
    known_after: int = 0
    known_generation: int = 1
    known: tuple[int, ...] = ()
    shows: tuple[int, ...] | None = None


class State(NamedTuple):
    """An entry of the log is its write; None if it was collected. All are acknowledged."""

    log: tuple[int | None, ...] = ()
    manifest: Manifest = Manifest()
    base: Base = Base()
    writer: Writer = Writer()
    reader: Reader = Reader()
    reads: int = 0
    claims: int = 0
    flushes: int = 0


@dataclass(frozen=True)
class FreshModel:
    """The protocol, or with one of its safeguards taken out.

    Parameters
    ----------
    writes, claims, flushes, reads : int
        How many.
    without : str
        ``order``: the base table is opened before the manifest is read. ``looking again``: where
        no entry is found, the log ends. ``newest entry``: the collector takes it, too.
        ``forgetting``: what is known of the log is kept although a flush came since.
    """

    writes: int = 3
    claims: int = 1
    flushes: int = 2
    reads: int = 2
    without: str = ""

    def initial(self) -> State:
        """A region that a writer has claimed."""
        return State()

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Everybody may go on."""
        yield from self._writer(state)
        yield from self._maintenance(state)
        yield from self._reader(state)

    def broken(self, state: State) -> str | None:
        """A finished read shows every write that was made before it began, the newest last."""
        reader = state.reader
        if reader.shows is None:
            return None
        if set(range(1, reader.promised + 1)) - set(reader.shows):
            return "an acknowledged row is not shown"
        if reader.shows and reader.shows[-1] != max(reader.shows):
            return "an older row is shown"
        return None

    def _writer(self, state: State) -> Iterator[tuple[str, State]]:
        tables = state.writer.tables
        number, last = tables[-1]
        if len(state.log) < self.writes:
            log = (*state.log, len(state.log) + 1)
            active = (*tables[:-1], (number, len(log)))
            yield "writer:writes", state._replace(log=log, writer=Writer(active))
        if last > state.manifest.replay_after and len(tables) < 2:
            yield "writer:seals", state._replace(writer=Writer((*tables, (number + 1, last))))
        if len(tables) > 1 and state.flushes < self.flushes:
            sealed, upto = tables[0]
            writes = tuple(w for w in state.log[state.manifest.replay_after : upto] if w)
            flushed = (*state.manifest.flushed, (sealed, writes))
            after = state._replace(
                manifest=Manifest(upto, sealed + 1, flushed),
                writer=Writer(tables[1:]),
                flushes=state.flushes + 1,
            )
            yield "writer:flushes", after
        if state.claims < self.claims:
            # The new owner has all that is not flushed in one MemTable, as Lance's writer does:
            # entries that record a later generation may be flushed with an earlier one.
            replayed = Writer(((state.manifest.generation, len(state.log)),))
            yield "writer:takes over", state._replace(writer=replayed, claims=state.claims + 1)

    def _maintenance(self, state: State) -> Iterator[tuple[str, State]]:
        manifest, base = state.manifest, state.base
        waiting = [(n, writes) for n, writes in manifest.flushed if n > base.merged]
        if waiting:
            merged = Base(
                waiting[-1][0], (*base.writes, *(w for _, writes in waiting for w in writes))
            )
            yield "merger:merges", state._replace(base=merged)
        named = tuple(item for item in manifest.flushed if item[0] > base.merged)
        if named != manifest.flushed:
            dropped = state._replace(manifest=manifest._replace(flushed=named))
            yield "collector:drops generations", dropped
        covered = not manifest.flushed or manifest.flushed[0][0] > base.merged
        last = len(state.log) - (self.without != "newest entry")
        for position in range(min(manifest.replay_after, last) if covered and not named else 0):
            if state.log[position] is not None:
                log = (*state.log[:position], None, *state.log[position + 1 :])
                yield "collector:collects an entry", state._replace(log=log)
                return

    def _reader(self, state: State) -> Iterator[tuple[str, State]]:
        me = state.reader
        if me.at == "off" and state.reads < self.reads:
            first = "base" if self.without == "order" else "manifest"
            began = me._replace(at=first, promised=len(state.log), shows=None)
            yield "reader:begins", state._replace(reader=began, reads=state.reads + 1)
        elif me.at == "manifest":
            after = "log" if self.without == "order" else "base"
            read = me._replace(manifest=state.manifest, at=after)
            yield "reader:reads the manifest", state._replace(reader=read)
        elif me.at == "base":
            yield from self._open_base(state, me)
        elif me.at == "log":
            yield self._follow(state, me)
        elif me.at == "tip":
            yield self._look_again(state, me)

    def _open_base(self, state: State, me: Reader) -> Iterator[tuple[str, State]]:
        if self.without == "order":
            opened = me._replace(base=state.base, at="manifest")
            yield "reader:opens the base table", state._replace(reader=opened)
        elif state.base.merged >= me.manifest.generation:
            yield "reader:begins again", state._replace(reader=me._replace(at="manifest"))
        else:
            opened = me._replace(base=state.base, at="log")
            yield "reader:opens the base table", state._replace(reader=opened)

    def _follow(self, state: State, me: Reader) -> tuple[str, State]:
        manifest = me.manifest
        fits = (me.known_after, me.known_generation) == (manifest.replay_after, manifest.generation)
        if not fits and self.without != "forgetting":
            forgot = me._replace(
                known_after=manifest.replay_after, known_generation=manifest.generation, known=()
            )
            return "reader:forgets", state._replace(reader=forgot)
        position = me.known_after + len(me.known)
        write = state.log[position] if position < len(state.log) else None
        if write is not None:
            read = me._replace(known=(*me.known, write))
            return "reader:reads an entry", state._replace(reader=read)
        if self.without == "looking again":
            return "reader:ends", state._replace(reader=self._ended(me))
        return "reader:finds no entry", state._replace(reader=me._replace(at="tip"))

    def _look_again(self, state: State, me: Reader) -> tuple[str, State]:
        """No entry was found; the manifest tells whether one may have been there."""
        if state.manifest == me.manifest:
            return "reader:ends", state._replace(reader=self._ended(me))
        later = state.log[me.known_after + len(me.known) :]
        if later and later[0] is None and any(later):
            again = me._replace(at="manifest", known=(), known_after=0, known_generation=0)
            return "reader:finds an entry gone", state._replace(reader=again)
        return "reader:lists the log", state._replace(reader=self._ended(me))

    def _ended(self, me: Reader) -> Reader:
        generations = [
            write
            for number, writes in me.manifest.flushed
            if number > me.base.merged
            for write in writes
        ]
        logged = [write for write in me.known if write]
        return me._replace(at="off", shows=(*me.base.writes, *generations, *logged))
