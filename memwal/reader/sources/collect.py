"""Open the sources of a read plan, and start over when the collector deletes one meanwhile.

A generation that was collected in between is in the base table by then, so a read that plans anew
finds its rows there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from memwal.base_table.snapshot import BaseTable
from memwal.errors import ConflictError, ObjectNotFoundError
from memwal.reader.sources.generation import GenerationSource, open_all, open_memtable
from memwal.reader.sources.plan import ReadPlan

_MAX_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class ReadSources:
    """A read plan with its generations opened.

    Attributes
    ----------
    plan : ReadPlan
    generations : tuple of GenerationSource
        Flushed generations and MemTables of the plan, oldest first within each region.
    """

    plan: ReadPlan
    generations: tuple[GenerationSource, ...]

    @property
    def base(self) -> BaseTable:
        """Pinned version of the base table."""
        return self.plan.base


def open_sources(plan: Callable[[], ReadPlan]) -> ReadSources:
    """Plan a read and open its generations.

    Parameters
    ----------
    plan : callable
        Plans the read. It is called again when a generation was merged and collected after the
        manifest that lists it was read: the base table of the new plan contains that generation.

    Raises
    ------
    ConflictError
        Generations vanish faster than they can be opened; the collector's grace is too short.
    """
    for _ in range(_MAX_ATTEMPTS):
        planned = plan()
        try:
            sources = open_all(planned.base, planned.generations)
        except ObjectNotFoundError:
            continue
        sources += [
            open_memtable(planned.base, region_id, rows) for region_id, rows in planned.memtables
        ]
        return ReadSources(planned, tuple(sorted(sources, key=lambda source: source.generation)))
    raise ConflictError(
        f"generations of {planned.base.location} were collected before they could be read, "
        f"{_MAX_ATTEMPTS} times; give the garbage collector a longer grace period; if they are "
        "lost, memwal verify --repair may make them again from the log"
    )


Result = TypeVar("Result")


def retry_if_collected(read: Callable[[], Result]) -> Result:
    """Run a read, and run it again when an object that it needs was collected meanwhile.

    A generation that was collected in between is in the base table by then, so a read that starts
    over finds its rows there.

    Parameters
    ----------
    read : callable
        Opens its sources anew each time.

    Raises
    ------
    ObjectNotFoundError
        An object is gone each time: the table is damaged.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(ObjectNotFoundError),
        stop=stop_after_attempt(_MAX_ATTEMPTS),
        reraise=True,
    )
    return retrying(read)
