"""What the maintenance jobs return, and how their tasks are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self, TypeVar

from memwal.errors import InvalidInputError

Task = TypeVar("Task")
Result = TypeVar("Result")

TaskRunner = Callable[[Sequence[Any], Callable[[Any], Any]], list[Any]]
"""Runs one function over every task and returns the results in the order of the tasks.

Tasks, results and the function can be pickled, so that a runner may send them to other machines.
"""


def run_in_process(tasks: Sequence[Task], function: Callable[[Task], Result]) -> list[Result]:
    """Run the tasks one after another in this process."""
    return [function(task) for task in tasks]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRegion:
    """A region that a job had to leave where it is, while the others went on.

    Attributes
    ----------
    region_id : str
        UUID as text.
    generation : int
        The first generation that cannot be merged; it and all later ones wait.
    reason : str
        Why, and what to do.
    """

    region_id: str
    generation: int
    reason: str

    def __str__(self) -> str:
        return f"region {self.region_id} is held at generation {self.generation}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What one run of one maintenance job did.

    Attributes
    ----------
    job : str
        ``merge``, ``index``, ``compact``, ``snapshot``, ``gc``, ``quality`` or ``copy``.
    table : str
        URI of the table.
    version : int
        Version of the base table after the job.
    tasks, commits : int
        Tasks that ran, and commits to the base table that they made.
    seconds : float
        Wall time.
    figures : dict
        What this kind of job counts, by name (``generations``, ``rows_upserted``, ``bytes`` ...).
    problems : tuple of str
        What was left undone and why; a job that skips a region says so here.
    held : tuple of HeldRegion
        Regions that a merge could not go on with. They are among the problems as well.
    quality : dict or None
        What a gate or a check found in rows, as of :class:`memwal.quality.report.QualityReport`;
        None when nothing was looked at. It holds keys of rows, and no other values.
    """

    job: str
    table: str
    version: int
    tasks: int = 0
    commits: int = 0
    seconds: float = 0.0
    figures: dict[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    held: tuple[HeldRegion, ...] = ()
    quality: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a result of what :meth:`to_dict` gave, or of the JSON of it; more is ignored.

        Parameters
        ----------
        values : mapping
            As ``to_dict`` gave it.

        Raises
        ------
        InvalidInputError
            It is not one.
        """
        known = {field.name for field in fields(cls)}
        found = {key: value for key, value in values.items() if key in known}
        try:
            found["problems"] = tuple(found.get("problems", ()))
            found["held"] = tuple(HeldRegion(**held) for held in found.get("held", ()))
            return cls(**found)
        except TypeError as error:
            raise InvalidInputError(f"this is not the result of a job: {error}") from error
