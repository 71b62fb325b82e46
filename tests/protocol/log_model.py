"""Claim, fence, replay, append and flush of one region, by writers that die, pause and come back.

What a write says does not matter, only which one it is: writes are numbered, and a region promises
that each acknowledged one is there, in the order in which they were made. The steps are those of
``memwal.writer``: :func:`~memwal.lsm.wal.claim.claim_region`, :func:`~memwal.lsm.wal.log.fence`,
:func:`~memwal.lsm.wal.log.put_entry`, and the flush that names a generation in the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

SENTINEL = 0
RECOVERY = -1
"""The sentinel of a recovery, which claims a region for a writer that seems to be dead."""


class Entry(NamedTuple):
    """One position of the log."""

    epoch: int
    write: int


class Manifest(NamedTuple):
    """The region's newest manifest. ``generations`` hold the numbers of their writes."""

    version: int = 1
    epoch: int = 0
    replay_after: int = 0
    generations: tuple[tuple[int, ...], ...] = ()


class Writer(NamedTuple):
    """What a process knows; it is gone when it dies.

    ``rows`` are the writes of the MemTable, ``sealed`` those of the one that is being flushed.
    ``unsure`` is a writer that has not looked for so long that its log may have been collected.
    """

    at: str = "off"
    version: int = 0
    epoch: int = 0
    position: int = 0
    unsure: bool = False
    rows: tuple[int, ...] = ()
    write: int = 0
    acknowledged_before: int = 0
    sealed: tuple[int, ...] = ()
    sealed_to: int = 0
    flushing_over: int = 0
    recovers: bool = False


class State(NamedTuple):
    """Store, processes, and what users were told: ``(write, how many were acknowledged when it
    began)``, in the order of the answers."""

    manifest: Manifest
    log: tuple[Entry | None, ...]
    writers: tuple[Writer, ...]
    acknowledged: tuple[tuple[int, int], ...] = ()
    writes: int = 0
    claims: int = 0
    deaths: int = 0
    flushes: int = 0
    waits: int = 0
    collectable: int = 0
    recoveries: int = 0


@dataclass(frozen=True)
class LogModel:
    """The protocol, or with one of its safeguards taken out.

    Parameters
    ----------
    writers, writes, claims, deaths, flushes, waits, recoveries : int
        How much may happen in all. A wait is longer than the grace period of the collector.
    without : str
        ``sentinel``: a claim is the manifest alone. ``replay behind the sentinel``: the log is read
        first. ``reading back``: an error of the store is taken for "not stored". ``epoch of a
        flush``: a manifest is replaced whoever wrote it. ``bound of the log``: entries are
        collected up to the tip. ``looking after a pause``: a writer that woke up appends at once.
        ``grace``: entries are collected as soon as they are flushed. ``certainty``: a writer that
        was fenced by a recovery writes again what may be in the log.
    """

    writers: int = 2
    writes: int = 2
    claims: int = 3
    deaths: int = 1
    flushes: int = 1
    waits: int = 1
    without: str = ""
    recoveries: int = 0

    def initial(self) -> State:
        """A region that nobody ever claimed."""
        return State(Manifest(), (), (Writer(),) * self.writers)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Every process may go on, or die."""
        for number, writer in enumerate(state.writers):
            for name, after, changed in self._steps_of(state, writer):
                writers = (*after.writers[:number], changed, *after.writers[number + 1 :])
                yield f"{number}:{name}", after._replace(writers=writers)
        yield from self._collector(state)

    def broken(self, state: State) -> str | None:
        """Nothing acknowledged is missing, out of order, twice, or hidden from the owner."""
        newest = state.manifest
        flushed = [write for rows in newest.generations for write in rows]
        entries = state.log[newest.replay_after :]
        if any(entry is None for entry in entries):
            return "an entry that a replay needs was collected"
        logged = [entry.write for entry in entries if entry and entry.write > SENTINEL]
        seen = flushed + logged
        if len(set(seen)) < len(seen):
            return "a write is there twice"
        place = {write: number for number, write in enumerate(seen)}
        for write, _ in state.acknowledged:
            if write not in place:
                return "an acknowledged write is lost"
        for number, (write, before) in enumerate(state.acknowledged):
            for earlier, _ in state.acknowledged[: min(before, number)]:
                if place[earlier] > place[write]:
                    return "an older write hides a newer one"
        for writer in state.writers:
            if writer.at in ("on", "append", "settle") and writer.epoch == newest.epoch:
                known = {*flushed, *writer.sealed, *writer.rows}
                if any(write not in known for write, _ in state.acknowledged):
                    return "the owner of a region does not see an acknowledged write"
        return None

    def _steps_of(self, state: State, me: Writer) -> Iterator[tuple[str, State, Writer]]:
        if me.at != "off" and state.deaths < self.deaths:
            yield "dies", state._replace(deaths=state.deaths + 1), Writer()
        if me.at == "off" and state.claims < self.claims:
            newest = state.manifest
            yield (
                "reads the manifest",
                state._replace(claims=state.claims + 1),
                Writer(at="claim", version=newest.version, epoch=newest.epoch + 1),
            )
            if newest.epoch and state.recoveries < self.recoveries:
                yield (
                    "begins a recovery",
                    state._replace(claims=state.claims + 1, recoveries=state.recoveries + 1),
                    Writer(
                        at="claim", version=newest.version, epoch=newest.epoch + 1, recovers=True
                    ),
                )
        elif me.at == "claim":
            yield self._claim(state, me)
        elif me.at == "tip":
            yield "finds the tip", state, me._replace(at="fence", position=len(state.log) + 1)
        elif me.at == "fence":
            yield self._fence(state, me)
        elif me.at == "replay":
            yield self._replay(state, me)
        elif me.at == "on" and me.write:
            yield "writes again", state, me._replace(at="append")
        elif me.at == "on" and state.writes < self.writes and not me.recovers:
            began = me._replace(
                at="append", write=state.writes + 1, acknowledged_before=len(state.acknowledged)
            )
            yield "begins a write", state._replace(writes=state.writes + 1), began
        elif me.at == "append":
            yield from self._append(state, me)
        elif me.at == "settle":
            yield from self._settle(state, me)
        if me.at in ("on", "append", "settle"):
            yield from self._flush(state, me)

    def _claim(self, state: State, me: Writer) -> tuple[str, State, Writer]:
        if state.manifest.version != me.version:
            return "loses the claim", state, Writer()
        claimed = state.manifest._replace(version=me.version + 1, epoch=me.epoch)
        after = state._replace(manifest=claimed)
        first = "replay" if self.without == "replay behind the sentinel" else "tip"
        if self.without == "sentinel":
            me = me._replace(position=len(state.log) + 1)
            first = "replay"
        elif first == "replay":
            me = me._replace(position=len(state.log) + 1)
        return "claims", after, me._replace(at=first)

    def _fence(self, state: State, me: Writer) -> tuple[str, State, Writer]:
        if me.position > len(state.log):
            kind = RECOVERY if me.recovers else SENTINEL
            after = state._replace(log=(*state.log, Entry(me.epoch, kind)))
            replayed = self.without == "replay behind the sentinel"
            me = me._replace(position=me.position + 1, at="on" if replayed else "replay")
            return "puts the sentinel", after, me
        there = state.log[me.position - 1]
        if there is not None and there.epoch > me.epoch:
            return "is fenced", state, Writer()
        return "walks on", state, me._replace(position=me.position + 1)

    def _replay(self, state: State, me: Writer) -> tuple[str, State, Writer]:
        newest = state.manifest
        if newest.epoch > me.epoch:
            return "is fenced", state, Writer()
        between = state.log[newest.replay_after : me.position - 1]
        if any(entry is not None and entry.epoch > me.epoch for entry in between):
            return "is fenced", state, Writer()
        rows = tuple(entry.write for entry in between if entry and entry.write > SENTINEL)
        after = "tip" if self.without == "replay behind the sentinel" else "on"
        return "replays", state, me._replace(at=after, rows=rows)

    def _append(self, state: State, me: Writer) -> Iterator[tuple[str, State, Writer]]:
        if me.unsure and self.without != "looking after a pause":
            if state.manifest.epoch > me.epoch:
                yield "is fenced", state, Writer()
            else:
                yield "looks after a pause", state, me._replace(unsure=False)
            return
        if me.position > len(state.log):
            log = (*state.log, Entry(me.epoch, me.write))
            yield "appends", state._replace(log=log), me._replace(at="settle")
            return
        there = state.log[me.position - 1]
        if there is None:
            # Whatever stood there is gone, so that the store takes the entry: where nobody looks.
            log = (
                *state.log[: me.position - 1],
                Entry(me.epoch, me.write),
                *state.log[me.position :],
            )
            yield "appends where nobody looks", state._replace(log=log), me._replace(at="settle")
        elif there.epoch > me.epoch:
            # Its entry is not in the log, and never will be.
            yield self._fenced(state, me)
        else:
            # A sentinel of a claim that lost against this one meanwhile, since a fenced writer
            # cannot have come past ours. Writes of clients without sentinels would be taken in.
            yield "walks past a fence", state, me._replace(position=me.position + 1)

    def _fenced(self, state: State, me: Writer) -> tuple[str, State, Writer]:
        """Stop, or claim back a region whose newest claim is a recovery's."""
        newest, last = state.manifest, state.log[-1]
        recovered = last == Entry(newest.epoch, RECOVERY)
        if not recovered or state.claims == self.claims:
            return "is fenced", state, Writer()
        again = Writer(
            at="claim",
            version=newest.version,
            epoch=newest.epoch + 1,
            write=me.write,
            acknowledged_before=me.acknowledged_before,
        )
        return "claims back", state._replace(claims=state.claims + 1), again

    def _settle(self, state: State, me: Writer) -> Iterator[tuple[str, State, Writer]]:
        if self.recoveries and me.unsure and state.manifest.epoch > me.epoch:
            # Its entry may be replayed by whoever fenced it, or be where nobody looks.
            certain = self.without != "certainty"
            yield ("is fenced", state, Writer()) if certain else self._fenced(state, me)
            return
        # Its entry is there. The store says so, or the writer reads it after an error.
        yield "acknowledges", _acknowledged(state, me), _written(me)
        if self.without == "reading back":
            yield "tries again", state, me._replace(at="append", position=me.position + 1)

    def _flush(self, state: State, me: Writer) -> Iterator[tuple[str, State, Writer]]:
        if me.rows and not me.sealed and state.flushes < self.flushes and me.at == "on":
            sealed = me._replace(rows=(), sealed=me.rows, sealed_to=me.position - 1)
            yield "seals", state._replace(flushes=state.flushes + 1), sealed
        elif me.sealed and not me.flushing_over:
            fenced = state.manifest.epoch > me.epoch
            if fenced and self.without != "epoch of a flush":
                yield "is fenced", state, Writer()
            else:
                over = me._replace(flushing_over=state.manifest.version)
                yield "writes the generation", state, over
        elif me.sealed:
            if state.manifest.version != me.flushing_over:
                yield "loses the manifest", state, me._replace(flushing_over=0)
                return
            newest = state.manifest
            flushed = newest._replace(
                version=newest.version + 1,
                replay_after=me.sealed_to,
                generations=(*newest.generations, me.sealed),
            )
            done = me._replace(sealed=(), sealed_to=0, flushing_over=0)
            yield "flushes", state._replace(manifest=flushed), done

    def _collector(self, state: State) -> Iterator[tuple[str, State]]:
        if state.waits < self.waits:
            writers = tuple(w._replace(unsure=True) if w.at != "off" else w for w in state.writers)
            yield (
                "time:a grace period goes by",
                state._replace(
                    waits=state.waits + 1, writers=writers, collectable=state.manifest.replay_after
                ),
            )
        bound = {"grace": state.manifest.replay_after, "bound of the log": len(state.log)}
        for position in range(bound.get(self.without, state.collectable)):
            if state.log[position] is not None:
                log = (*state.log[:position], None, *state.log[position + 1 :])
                yield "collector:collects an entry", state._replace(log=log)
                return


def _acknowledged(state: State, me: Writer) -> State:
    told = (me.write, me.acknowledged_before)
    return state._replace(acknowledged=(*state.acknowledged, told))


def _written(me: Writer) -> Writer:
    return me._replace(
        at="on",
        rows=(*me.rows, me.write),
        position=me.position + 1,
        write=0,
        acknowledged_before=0,
    )
