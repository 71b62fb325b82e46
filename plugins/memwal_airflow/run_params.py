"""Parameters of a manual DAG run, and their form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from airflow.sdk import Param
from airflow.sdk.definitions.param import ParamsDict

from memwal.jobs.due import JOBS

_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_LABELS = {
    "merge": "merge: the backlog of regions into the base table",
    "index": "index: catch maintained indexes up",
    "compact": "compact: join small fragments of the base table",
    "snapshot": "snapshot: publish the state of the regions",
    "gc": "gc: delete what no reader needs",
    "quality": "quality: check the rows of the base table",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """The parameters of a run.

    Attributes
    ----------
    jobs : tuple of str
        Only these jobs; empty for all.
    regions : tuple of str
        UUIDs of the regions to merge; empty for all.
    force : bool
        Run jobs due or not, in quiet hours, and without waiting.
    dry_run : bool
        Decide what to do, and change nothing.
    """

    jobs: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    force: bool = False
    dry_run: bool = False

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Self:
        """Read the parameters of a run; those that a user's own DAG lacks take their defaults."""
        return cls(
            jobs=tuple(params.get("jobs") or ()),
            regions=tuple(params.get("regions") or ()),
            force=bool(params.get("force")),
            dry_run=bool(params.get("dry_run")),
        )

    def leaves_out(self, job: str) -> str | None:
        """Return why this run excludes a job; None if it does not."""
        if not self.jobs or job in self.jobs:
            return None
        return f"This run was asked for {', '.join(self.jobs)} only."


class _UncheckedParams(ParamsDict):
    """Parameters whose defaults are not validated each time that a DAG is built.

    The defaults are the same for all tables, and validating them takes as long as the rest of the
    build. The values of a run are validated: by the server that starts it and by each task, which
    both copy them.
    """

    __slots__ = ()

    def validate(self) -> dict[str, Any]:
        return {name: self.get_param(name).value for name in self}


def run_params() -> ParamsDict:
    """Return the parameters; new ones for each DAG, since they store the values of a run."""
    return _UncheckedParams(
        {
            "jobs": Param(
                [],
                type="array",
                title="Jobs",
                # The form offers the examples, and the schema refuses what is none of them.
                items={"type": "string", "enum": list(JOBS)},
                examples=list(JOBS),
                values_display=_LABELS,
                description="Which jobs to run, as far as they are due; all when empty.",
            ),
            "regions": Param(
                [],
                type="array",
                title="Regions",
                items={"type": "string", "pattern": _UUID},
                description="UUIDs of the regions to merge, one a line; all when empty.",
            ),
            "force": Param(
                False,
                type="boolean",
                title="Force",
                description="Now: due or not, in quiet hours, and without waiting for a backlog.",
            ),
            "dry_run": Param(
                False,
                type="boolean",
                title="Dry run",
                description="Decide what to do, and change nothing.",
            ),
        }
    )
