"""The details of a table's MemWAL index, which three jobs and Lance itself change.

One value holds merge progress, catch-up of an index and the snapshot of the regions; each job has
news of one of them. The step is that of ``memwal.base_table.commit``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

JOBS = ("merge", "index", "snapshot")


class Details(NamedTuple):
    """What a version of the table says."""

    merged: int = 0
    caught_up: int = 0
    snapshot: int = 0


class Job(NamedTuple):
    """What a run of a job read, and when."""

    at: str = "off"
    version: int = 0
    read: Details = Details()


class State(NamedTuple):
    """The newest details with the number of their version, those before, and the runs."""

    version: int
    details: Details
    before: Details
    indexed: int
    jobs: tuple[Job, ...]
    runs: int = 0


@dataclass(frozen=True)
class DetailsModel:
    """The protocol, or with a safeguard taken out.

    Parameters
    ----------
    runs : int
        Of all jobs together.
    without : str
        ``compare and swap``: a commit is put on top of whatever is there. ``what was read``: an
        index is said to be caught up to the progress at the commit, not to what was indexed.
    """

    runs: int = 6
    without: str = ""

    def initial(self) -> State:
        """Nothing merged."""
        return State(1, Details(), Details(), 0, (Job(),) * len(JOBS))

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """A run reads, commits, or dies in between, which is as if it stood still for ever."""
        for number, (name, job) in enumerate(zip(JOBS, state.jobs, strict=True)):
            if job.at == "off":
                if state.runs < self.runs:
                    runs = state.runs + 1
                    read = Job("read", state.version, state.details)
                    yield f"{name}:reads", _with(state, number, read)._replace(runs=runs)
            elif state.version != job.version and self.without != "compare and swap":
                yield f"{name}:is refused", _with(state, number, Job())
            else:
                yield f"{name}:commits", self._commit(_with(state, number, Job()), name, job)

    def broken(self, state: State) -> str | None:
        """Nothing falls back, and an index is caught up with no more than it holds."""
        if any(now < then for now, then in zip(state.details, state.before, strict=True)):
            return "news of another job is lost"
        if state.details.caught_up > state.indexed:
            return "an index is said to hold what it does not"
        return None

    def _commit(self, state: State, name: str, job: Job) -> State:
        indexed = state.indexed
        on = job.read
        if name == "merge":
            after = on._replace(merged=on.merged + 1)
        elif name == "index":
            indexed = max(indexed, job.read.merged)
            newer = self.without == "what was read"
            after = on._replace(caught_up=state.details.merged + newer if newer else on.merged)
        else:
            after = on._replace(snapshot=on.snapshot + 1)
        return state._replace(
            version=state.version + 1, details=after, before=state.details, indexed=indexed
        )


def _with(state: State, number: int, job: Job) -> State:
    return state._replace(jobs=(*state.jobs[:number], job, *state.jobs[number + 1 :]))
