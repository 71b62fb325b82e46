"""A flush that sleeps, and collectors that take its folder for the rest of one that died.

Ages are left out: a collector may take any folder for an orphan that the manifest does not name, at
any time. The steps are those of ``memwal.lsm.flush.generation``, ``memwal.lsm.wal.claim`` and
``memwal.jobs.gc.generations``. There is one generation to be flushed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Folder(NamedTuple):
    """What is stored of one try to flush: what comes first, the bloom filter, and a mark."""

    first: bool = False
    bloom: bool = False
    mark: bool = False


class Writer(NamedTuple):
    """The flush, which of its tries it is at, and the version of the manifest that it read."""

    at: str = "begins"
    version: int = 0


class Collector(NamedTuple):
    """A run, the folder that it is about, and the version of the manifest that it read."""

    at: str = "off"
    folder: int = 0
    version: int = 0


class State(NamedTuple):
    """The newest version of the manifest, which folder it names, the folders, and who is there."""

    version: int
    named: int | None
    folders: tuple[Folder, ...]
    writer: Writer
    collectors: tuple[Collector, ...]
    runs: int = 0
    deaths: int = 0


@dataclass(frozen=True)
class OrphanModel:
    """The protocol, or with a safeguard taken out.

    Parameters
    ----------
    tries : int
        How often the flush may begin anew, in a folder of its own.
    collectors, runs, deaths : int
        Runs at once, and of all together; deaths of whoever it is.
    without : str
        ``mark``, ``version``: a collector puts none. ``order``: the mark goes before the rest.
        ``what came first``: a flush does not look for it. ``mark before bloom``: it looks the
        other way round.
    """

    tries: int = 3
    collectors: int = 2
    runs: int = 3
    deaths: int = 1
    without: str = ""

    def initial(self) -> State:
        """Nothing is written yet."""
        return State(1, None, (), Writer(), (Collector(),) * self.collectors)

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """One request of somebody, or a death."""
        yield from self._write(state, state.writer)
        for number, run in enumerate(state.collectors):
            yield from self._collect(state, number, run)
        if state.deaths < self.deaths:
            yield from self._die(state._replace(deaths=state.deaths + 1))

    def broken(self, state: State) -> str | None:
        """What the manifest names is there."""
        if state.named is not None and not all(state.folders[state.named][:2]):
            return "the manifest names a generation that is gone"
        return None

    # The flush

    def _write(self, state: State, writer: Writer) -> Iterator[tuple[str, State]]:
        name, go = f"writer:{writer.at}", lambda at: state._replace(writer=writer._replace(at=at))
        mine = len(state.folders) - 1
        again = go("begins")
        if writer.at == "begins":
            if len(state.folders) < self.tries:
                after = state._replace(folders=(*state.folders, Folder(first=True)))
                yield name, after._replace(writer=Writer("writes the bloom filter"))
        elif writer.at == "writes the bloom filter":
            after = _changed(state, mine, bloom=True)
            unseen = self.without == "what came first"
            at = "reads the manifest" if unseen else "looks for what came first"
            yield name, after._replace(writer=Writer(at))
        elif writer.at == "looks for what came first":
            yield name, go("reads the manifest") if state.folders[mine].first else again
        elif writer.at == "reads the manifest":
            if state.named is not None:
                yield f"{name}, which names it", go("ended")
            else:
                after = Writer(self._looks[0], state.version)
                yield name, state._replace(writer=after)
        elif writer.at in self._looks:
            following = dict(zip(self._looks, (*self._looks[1:], "names it"), strict=True))
            folder = state.folders[mine]
            fine = not folder.mark if writer.at == "looks for a mark" else folder.bloom
            yield name, go(following[writer.at]) if fine else again
        elif writer.at == "names it":
            if state.version == writer.version:
                after = state._replace(version=state.version + 1, named=mine)
                yield name, after._replace(writer=Writer("ended"))
            else:
                yield f"{name} too late", go("reads the manifest")

    @property
    def _looks(self) -> tuple[str, str]:
        looks = ("looks for a mark", "looks for the bloom filter")
        return looks[::-1] if self.without == "mark before bloom" else looks

    # Collectors

    def _collect(self, state: State, number: int, run: Collector) -> Iterator[tuple[str, State]]:
        name = f"collector:{run.at}"

        def go(at: str, after: State = state, **changed: int) -> State:
            return _with(after, number, run._replace(at=at, **changed))

        if run.at == "off":
            if state.runs < self.runs and state.named is None:
                after = state._replace(runs=state.runs + 1)
                for folder, content in enumerate(state.folders):
                    if any(content):
                        first = "reads the manifest" if self.without == "mark" else "marks"
                        yield f"{name}, judges", go(first, after, folder=folder)
        elif run.at == "marks":
            yield name, go("reads the manifest", _changed(state, run.folder, mark=True))
        elif run.at == "reads the manifest":
            if state.named is not None:
                yield f"{name}, which has the generation", go("takes the mark back")
            else:
                at = self._order[0] if self.without == "version" else "puts a version"
                yield name, go(at, version=state.version)
        elif run.at == "puts a version":
            if state.version == run.version:
                yield name, go(self._order[0], state._replace(version=state.version + 1))
            else:
                yield f"{name} too late", go("reads the manifest")
        elif run.at == "takes the mark back":
            yield name, _with(_changed(state, run.folder, mark=False), number, Collector())
        else:
            order = (*self._order, "off")
            what = {
                "deletes what came first": {"first": False},
                "deletes the bloom filter": {"bloom": False},
                "deletes the mark": {"mark": False},
                "deletes what is left": {"first": False, "bloom": False, "mark": False},
            }[run.at]
            following = order[order.index(run.at) + 1]
            after = _changed(state, run.folder, **what)
            yield name, _with(after, number, run._replace(at=following))

    @property
    def _order(self) -> tuple[str, ...]:
        """Deletes: the last two are one folder, whose objects go in any order."""
        order = ("deletes what came first", "deletes the bloom filter", "deletes the mark")
        if self.without == "order":
            order = (order[2], *order[:2])
        return (*order, "deletes what is left")

    def _die(self, state: State) -> Iterator[tuple[str, State]]:
        if state.writer.at != "ended":
            # Whoever claims the region takes the next version, and flushes what the log has.
            after = state._replace(version=state.version + 1, writer=Writer())
            yield "writer:dies", after
        for number, run in enumerate(state.collectors):
            if run.at != "off":
                yield "collector:dies", _with(state, number, Collector())


def _changed(state: State, number: int, **changed: bool) -> State:
    folders = list(state.folders)
    folders[number] = folders[number]._replace(**changed)
    return state._replace(folders=tuple(folders))


def _with(state: State, number: int, run: Collector) -> State:
    runs = list(state.collectors)
    runs[number] = run if run.at != "off" else Collector()
    # In one order: which of them is where makes no difference, and half of the states.
    return state._replace(collectors=tuple(sorted(runs)))
