"""The keys of section ``[memwal]`` of ``airflow.cfg``: meaning, default and how to read each.

``airflow config list``, the guide and every module that reads a key take them from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from memwal.errors import InvalidInputError
from memwal.util.safe_json import read_json
from memwal_airflow import SECTION

T = TypeVar("T", str, int, float)


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A key, whose type is that of its default; ``AIRFLOW__MEMWAL__{KEY}`` overrides the file.

    An empty text is as good as no value.
    """

    key: str
    default: T
    description: str
    example: str | None = None
    least: int | None = None
    version_added: str = "0.1.0"

    def read(self) -> T:
        """Return the value, else the default.

        Raises AirflowConfigException unless the value of a number is one, and InvalidInputError if
        it is below the least one.
        """
        # Creating the configuration asks for the description of this package.
        from memwal_airflow.version_compat import conf

        readers = {str: conf.get, int: conf.getint, float: conf.getfloat}
        value: T = readers[type(self.default)](SECTION, self.key, fallback=self.default)
        if self.least is not None and isinstance(value, int) and value < self.least:
            raise InvalidInputError(
                f"[{SECTION}] {self.key} is {value}, and must be at least {self.least}: "
                f"{self.description}"
            )
        return value


def setting_by_owner(setting: Setting[str]) -> dict[str, str]:
    """Return a setting that is a JSON object from owners to texts; empty if unset.

    Raises ``InvalidInputError``, with its example, if it is anything else.
    """
    text = setting.read().strip()
    try:
        found = read_json(text) if text else {}
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InvalidInputError(
            f"[{SECTION}] {setting.key} in airflow.cfg must be a JSON object by owners: "
            f"{setting.example}"
        )
    return found


FLEET_SCHEDULE: Final = Setting(
    "fleet_schedule",
    "@hourly",
    "When the DAG memwal_fleet runs: a cron expression, or none.",
    example="*/10 * * * *",
)
DUE_WATCHERS: Final = Setting(
    "due_watchers",
    1,
    "Shards of the tables, each with one poll; at most the number of triggerers.",
    least=1,
)
TABLE_DAGS: Final = Setting(
    "table_dags",
    "auto",
    "Which tables have a DAG of their own: each; drain: those with a schedule other than @due, "
    "and the DAG memwal_drain runs the jobs of the others; auto: as drain for more than 50 "
    "tables.",
)
DRAIN_JOBS: Final = Setting(
    "drain_jobs", 2, "Jobs that a task of memwal_drain runs at once, each in a thread.", least=1
)
DRAIN_SECONDS: Final = Setting(
    "drain_seconds",
    600,
    "Seconds after which a task of memwal_drain starts no other job.",
    least=1,
)
VERIFY_TABLES_PER_DAY: Final = Setting(
    "verify_tables_per_day", 3, "How many tables are verified within a day."
)
NOTIFY_CONN_ID: Final = Setting(
    "notify_conn_id",
    "",
    "Connection of type slackwebhook or http that events are sent to.",
    example="slack",
)
NOTIFY_OWNERS: Final = Setting(
    "notify_owners",
    "",
    "Other connections for owners of tables, as a JSON object.",
    example='{"air team": "slack_air"}',
)
OWNER_ROLES: Final = Setting(
    "owner_roles",
    "",
    "Roles of the FAB auth manager for owners of tables, as a JSON object: only the role of its "
    "owner may see a table and start its jobs.",
    example='{"air team": "Air"}',
)
SPARK_CONN_ID: Final = Setting(
    "spark_conn_id",
    "",
    "Connection of all operators that set none, of type spark or spark_connect.",
    example="spark_default",
)
SPARK_MASTER: Final = Setting(
    "spark_master",
    "local[*]",
    "Spark master if there is no connection, or the address of a Spark Connect server.",
    example="sc://spark:15002",
)
DEPLOY_MODE: Final = Setting(
    "deploy_mode", "client", "client, or cluster, which runs drivers in pods of Kubernetes."
)
SPARK_PROPERTIES_FILE: Final = Setting(
    "spark_properties_file", "", "Java properties file, instead of spark-defaults.conf."
)
KUBERNETES_NAMESPACE: Final = Setting(
    "kubernetes_namespace",
    "",
    "Where drivers run in cluster mode; if empty, the namespace of Airflow's pod, else default.",
)
RESULTS_URI: Final = Setting(
    "results_uri",
    "",
    "Folder that drivers write their results into: required in cluster mode, and a different one "
    "for each catalog.",
    example="s3://lake/memwal-results",
)
RESULTS_OPTIONS_FILE: Final = Setting(
    "results_options_file",
    "",
    "JSON file of storage options for results_uri, at the same path for Airflow's tasks and for "
    "drivers.",
)
DRIVER_START_SECONDS: Final = Setting(
    "driver_start_seconds",
    600.0,
    "Seconds that a driver's pod may wait for a node, and then for its start.",
)
DRIVER_POD_URL: Final = Setting(
    "driver_pod_url",
    "",
    "Page of a driver's pod for the link to Spark's UI.",
    example="https://console.example.com/{namespace}/{pod}",
)
LOCAL_BELOW_BYTES: Final = Setting(
    "local_below_bytes",
    256 << 20,
    "Jobs of tables that store less run in the task's own process, without Spark; 0 for Spark in "
    "all cases. It bounds the memory that jobs take from a worker.",
)
RUNBOOK_URL: Final = Setting(
    "runbook_url",
    "",
    "Address of the runbooks, with {alert} in place of the name of one.",
    example="https://example.com/{alert}.html",
)
SPARK_APPS_FOLDER: Final = Setting(
    "spark_apps_folder",
    "",
    "Folder of the Spark applications; if empty, the one that came with memwal, and in cluster "
    "mode local:///opt/memwal/spark_apps.",
)
SPARK_HISTORY_URL: Final = Setting(
    "spark_history_url",
    "",
    "Address of a Spark history server.",
    example="https://history.example.com",
)
STATE_FOLDER: Final = Setting(
    "state_folder",
    "",
    "Folder of logs, results and storage options of running applications; if empty, memwal/jobs "
    "in Airflow's home.",
)

SETTINGS: Final = tuple(value for value in [*globals().values()] if isinstance(value, Setting))
"""All keys, in the order of the guide."""
