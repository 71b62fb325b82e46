"""Parameters of a manual DAG run, and their form."""

from __future__ import annotations

from airflow.sdk import Param
from airflow.sdk.definitions.param import ParamsDict

from memwal.jobs.due import JOBS
from memwal.util.records import JsonMapping, JsonObject

_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_LABELS = {
    "recover": "recover: flush rows that dead writers left in the log",
    "merge": "merge: the backlog of regions into the base table",
    "index": "index: catch maintained indexes up",
    "compact": "compact: join small fragments of the base table",
    "snapshot": "snapshot: publish the state of the regions",
    "gc": "gc: delete what no reader needs",
    "quality": "quality: check the rows of the base table",
}


def includes(params: JsonMapping, job: str) -> bool:
    """Return whether the parameters of a run, which a user's own DAG may lack, include a job."""
    jobs = params.get("jobs")
    return not jobs or job in jobs


class _UncheckedParams(ParamsDict):
    """Parameters whose defaults are not validated each time that a DAG is built.

    The defaults are the same for all tables, and validating them takes as long as the rest of the
    build. The server that starts a run and each of its tasks validate copies with its values.
    """

    __slots__ = ()

    def validate(self) -> JsonObject:
        return {name: self.get_param(name).value for name in self}


def run_params() -> ParamsDict:
    """Return new parameters: each DAG needs its own, since they store the values of a run."""
    return _UncheckedParams(
        {
            "jobs": Param(
                [],
                type="array",
                title="Jobs",
                # The form offers the examples, and the schema refuses other values.
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
