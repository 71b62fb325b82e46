"""Records that the catalog returns, checks of their values, and the exported snapshot of tables.

The snapshot is one JSON file for readers that need speed and no database: Airflow builds its DAGs
from it each time it parses its DAG files. Nothing of SQLAlchemy is imported here.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Self, cast
from urllib.parse import urlsplit

from memwal.boundary.public import public
from memwal.errors import InvalidInputError, ObjectNotFoundError, UnsupportedStoreError
from memwal.jobs.policy import WHEN_DUE, Policy
from memwal.jobs.status import TableStatus
from memwal.storage.uris import parse_uri
from memwal.util import system
from memwal.util.log import safe_error_text
from memwal.util.records import JsonMapping, JsonObject, JsonRecord
from memwal.util.safe_json import is_unicode, read_json

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
CONNECTION_PREFIX = "airflow:"
CONNECTION_REF = re.compile(r"airflow:[A-Za-z0-9_.-]{1,200}")
# Names under which failures that are not of a job are stored, among the names of jobs: reading the
# status of a table, a log that lacks an entry, a base table that went back behind merged
# generations, building the DAG, starting its runs, and the answer to a sensor.
STATUS_JOB = "status"
LOG_JOB = "log"
PROGRESS_JOB = "progress"
DAG_JOB = "dag"
START_JOB = "not_started"
SENSOR_JOB = "sensor_timeout"
SNAPSHOT_FORMAT = 3
SNAPSHOT_VARIABLE = "MEMWAL_CATALOG_SNAPSHOT"

_FILE_REF = re.compile(r"/[^\0\n]*\.json")


class ErrorKind(StrEnum):
    """Kind of an error that a run ended with, by its remedy."""

    ACCESS = "access"
    FULL = "full"
    LIMIT = "limit"
    UNAVAILABLE = "unavailable"
    ABSENT = "absent"
    CONFLICT = "conflict"
    DAMAGED = "damaged"
    WENT_BACK = "went_back"
    NEWER_FORMAT = "newer_format"
    SPARK = "spark"
    SPARK_SERVER = "spark_server"
    DIED = "died"
    """The process ended without an error."""
    OTHER = "other"


# By the name of a class, since some are of packages below; those of subclasses go before.
_KIND_OF_CLASS: Mapping[str, ErrorKind] = {
    "StoreAccessError": ErrorKind.ACCESS,
    "StoreFullError": ErrorKind.FULL,
    "ResourceLimitError": ErrorKind.LIMIT,
    "MemoryError": ErrorKind.LIMIT,
    "StoreUnavailableError": ErrorKind.UNAVAILABLE,
    "ObjectNotFoundError": ErrorKind.ABSENT,
    "TableSetupError": ErrorKind.ABSENT,
    "TableReplacedError": ErrorKind.ABSENT,
    "ConflictError": ErrorKind.CONFLICT,
    "CorruptDataError": ErrorKind.DAMAGED,
    "ProgressLostError": ErrorKind.WENT_BACK,
    "NewerFormatError": ErrorKind.NEWER_FORMAT,
    "SparkApplicationError": ErrorKind.SPARK,
    "SparkUnavailableError": ErrorKind.SPARK_SERVER,
}


def describe_error(error: BaseException | str) -> tuple[str, ErrorKind | None]:
    """Return the text of an error without data, and its kind; of a text, the kind is unknown."""
    if isinstance(error, str):
        return error, None
    names = (base.__name__ for base in type(error).__mro__)
    kinds = (_KIND_OF_CLASS[name] for name in names if name in _KIND_OF_CLASS)
    return safe_error_text(error), next(kinds, ErrorKind.OTHER)


def error_kind(stored: str | None) -> ErrorKind | None:
    """Return a stored kind; None if there is none, or it is one of a newer version."""
    return ErrorKind(stored) if stored in set(ErrorKind) else None


# JSON types of the fields of a record.
_KINDS: Mapping[str, type | UnionType] = {
    "str": str,
    "str | None": str | None,
    "bool": bool,
    "Policy": Mapping,
    "datetime": str,
    "int | None": int | None,
}
_TIMES = ("created_at", "updated_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedTable(JsonRecord):
    """One table that is registered for maintenance."""

    name: str
    """1 to 63 lower-case letters, digits, ``_`` and ``-``; unique in the catalog."""
    uri: str
    """Address of the table. Must not hold credentials."""
    storage_options_ref: str | None
    """Where the storage options are, never the options themselves: the absolute path of a JSON
    file, or ``airflow:{connection id}`` for the extra of an Airflow connection."""
    policy: Policy
    """When and how it is maintained."""
    owner: str
    """Person or team to ask."""
    enabled: bool
    """False keeps the table registered and stops its maintenance."""
    created_at: datetime
    """In UTC."""
    updated_at: datetime
    """In UTC."""
    mem_wal: bool = True
    """True if MemWAL was enabled when the status was last read, or the table was registered."""
    regions: int | None = None
    """Number of regions when the status was last read; None if it was never read."""
    problem: str | None = None
    """Why the policy in the catalog cannot be read, and what to do. ``policy`` is the default one
    then, and no job of the table runs."""

    @property
    def starts_when_due(self) -> bool:
        """Return whether the runs of the table start when a job is due."""
        return self.problem is None and self.policy.schedule == WHEN_DUE

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON."""
        return {**JsonRecord.to_dict(self), "policy": self.policy.to_dict()}

    @classmethod
    def from_dict(cls, values: JsonMapping) -> Self:
        """Build a record from ``values``, the result of :meth:`to_dict`.

        A policy that cannot be read becomes the ``problem`` of the record. Raises
        ``InvalidInputError`` if a key without a default is missing, or a value is of another type.
        """
        kinds = {
            field.name: _KINDS[str(field.type)] for field in fields(cls) if field.name != "problem"
        }
        # The version of memwal before, which may write the snapshot, lacks the newest of these.
        defaults = {each.name: each.default for each in fields(cls) if each.default is not MISSING}
        record = defaults | dict(values) if isinstance(values, Mapping) else {}
        wrong = [
            k for k, kind in kinds.items() if k not in record or not isinstance(record[k], kind)
        ]
        if wrong:
            raise InvalidInputError(
                f"The record of a managed table lacks {', '.join(map(repr, wrong))}, or "
                "has something else there; export it again."
            )
        try:
            times = {key: datetime.fromisoformat(record[key]) for key in _TIMES}
        except ValueError:
            raise InvalidInputError(
                f"The record of a managed table has no times of ISO 8601 as {', '.join(_TIMES)}."
            ) from None
        policy, problem = read_policy(record["name"], record["policy"])
        values = {key: record[key] for key in kinds} | times
        return cls(**values | {"policy": policy, "problem": problem})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFolder(JsonRecord):
    """Folder, or LanceDB database, of which every table is registered, also those made later."""

    uri: str
    """Address of the folder. Must not hold credentials."""
    storage_options_ref: str | None
    """As of :class:`ManagedTable`, for each of its tables."""
    policy: Policy
    """Policy that its tables are registered with."""
    owner: str
    """Person or team to ask about its tables."""
    enabled: bool
    """True if its tables are maintained from their registration on."""
    problem: str | None = None
    """Error of the policy in the catalog if it cannot be read, with the command that sets another:
    ``policy`` is the default one then, and no table is registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Number of rows that :meth:`memwal.catalog.Catalog.prune` deleted from the catalog."""

    runs: int
    """Job runs."""
    samples: int
    """Backlog samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogSample:
    """Backlog of a table at one moment, summed over its regions."""

    table: str
    """Name of the managed table."""
    at: datetime
    """In UTC."""
    generations: int
    """Generations that are flushed and not merged."""
    rows: int
    """Their rows."""
    bytes: int
    """Their bytes."""
    wal_entries: int
    """Entries of the write-ahead logs that no flushed generation covers; 0 if all rows are
    flushed."""
    version: int | None = None
    """Version of the base table. This attribute and the following ones are None in samples of a
    memwal version that did not record them."""
    base_rows: int | None = None
    """Rows of the base table."""
    regions: int | None = None
    """Number of regions."""
    oldest_seconds: float | None = None
    """Age of the oldest generation of the backlog; None when there is no backlog."""
    lag_generations: int | None = None
    """Merged generations that the index furthest behind does not cover; None when no index is
    maintained."""
    lag_rows: int | None = None
    """Rows of the base table that it does not cover."""
    reclaimable_bytes: int | None = None
    """Bytes in memory of generations that only retention keeps."""
    seen_at: datetime | None = None
    """Time of the last poll that found the table unchanged, in UTC; None without such a poll."""

    @property
    def known_at(self) -> datetime:
        """Latest time at which the backlog was known to be this one, in UTC."""
        return self.seen_at or self.at


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The latest status of a table."""

    table: str
    """Name of the managed table."""
    at: datetime
    """When the status was read, in UTC. Ages in the status count up to this time."""
    status: TableStatus
    """The status."""
    probe: JsonObject | None = None
    """State that a later look compares, to see whether the table has changed; None if the process
    that read the status does not look again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueJob(JsonRecord):
    """A job of a table that is due, as the process that watches the table saw it."""

    table: str
    """Name of the managed table."""
    job: str
    """Name of the job."""
    since: datetime
    """When it was first seen to be due, in UTC; runs in between do not change it."""
    reason: str
    """The limit that it has reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowProblem(JsonRecord):
    """A problem that Airflow's database shows."""

    state: str
    """The state that it puts a table in: value of a :class:`memwal.fleet.health.Health`."""
    table: str | None
    """Name of the managed table; None if it concerns all tables."""
    since: datetime
    """When it began, in UTC."""
    reason: str
    """One line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowReport:
    """The latest report of Airflow's API server."""

    at: datetime
    """When it was stored, in UTC."""
    problems: tuple[AirflowProblem, ...]
    """All problems at that time."""


def read_policy(
    name: str, values: object, *, command: str = "policy set {} KEY=VALUE"
) -> tuple[Policy, str | None]:
    """Return the stored policy of a table; if it cannot be read, the default and why.

    ``command`` of ``memwal catalog`` stores another one; braces stand for the name.
    """
    try:
        return Policy.from_dict(cast("JsonMapping", values)), None
    except InvalidInputError as error:
        return Policy(), (
            f"the policy of {name} in the catalog cannot be read: {error} Set it anew, from the "
            f"default one: memwal catalog {command.format(name)} ..."
        )


def check_name(name: str) -> str:
    """Return a table name if it is valid for the catalog, a DAG id and an asset."""
    if not NAME.fullmatch(name):
        raise InvalidInputError(
            f"{shown_name(name)} cannot be the name of a managed table; use 1 to 63 lower-case "
            "letters, digits, '_' and '-', starting with a letter or a digit."
        )
    return name


def shown_name(name: str) -> str:
    """Return a name for messages, hiding an address given by mistake: it could hold a password."""
    return "an address" if "://" in name else repr(name)


def check_uri(uri: str) -> str:
    """Return a table URI if it holds no credentials.

    No message repeats the URI, so that a password does not end up in a log.
    """
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise InvalidInputError(
            "The URI of a managed table cannot be taken apart; give an address such as "
            "s3://bucket/path, or a path."
        ) from None
    if not uri.strip() or not is_unicode(uri) or "\0" in uri:
        raise InvalidInputError(
            "The URI of a managed table is empty, or no text; give the table's location."
        )
    if "@" in parts.netloc or (parts.scheme and parts.query):
        raise InvalidInputError(
            "The URI of a managed table holds a user, a password or query parameters; leave "
            "them out and put credentials into a storage options file or an Airflow connection."
        )
    parse_uri(uri)
    return uri


def check_storage_options_ref(ref: str | None) -> str | None:
    """Return a reference to storage options if it is one, and not the options themselves.

    The message does not repeat the reference, since a secret may be given by mistake.
    """
    if ref is None or CONNECTION_REF.fullmatch(ref):
        return ref
    if _FILE_REF.fullmatch(ref) and is_unicode(ref):
        return ref
    raise InvalidInputError(
        "storage_options_ref must be the absolute path of a JSON file (ending in .json) or "
        "'airflow:' and a connection id; the catalog keeps no storage options themselves."
    )


@public
def read_snapshot(path: str | Path) -> list[ManagedTable]:
    """Read the tables of a snapshot, enabled or not, by name.

    ``path`` is a file written by :meth:`memwal.catalog.Catalog.export_snapshot`. A table whose
    policy this memwal cannot read has a ``problem``.

    Raises
    ------
    ObjectNotFoundError
        There is no such file.
    InvalidInputError
        The file is not a snapshot, or was written by a newer memwal.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ObjectNotFoundError(
            f"There is no catalog snapshot at {path}; set {SNAPSHOT_VARIABLE} where tables are "
            "registered, or call Catalog(url).export_snapshot(path)."
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"The catalog snapshot {path} cannot be read ({type(error).__name__}); export it again."
        ) from error
    try:
        content = read_json(text)
    except ValueError as error:
        raise InvalidInputError(
            f"{path} is not a catalog snapshot ({error}); export it again."
        ) from error
    tables = content.get("tables") if isinstance(content, dict) else None
    if not isinstance(tables, list) or content.get("format") != SNAPSHOT_FORMAT:
        raise InvalidInputError(
            f"{path} is not a catalog snapshot of format {SNAPSHOT_FORMAT}; export it again with "
            "the memwal that reads it."
        )
    return [ManagedTable.from_dict(values) for values in tables]


def write_snapshot(path: str | Path, tables: Sequence[ManagedTable]) -> None:
    """Write a snapshot so that readers see the old file or the new one, never a part.

    Hold :func:`snapshot_lock` from before the tables are read, so that of two writers the one with
    the newer tables writes last.
    """
    target = Path(path)
    records = [{**table.to_dict(), "policy": table.policy.changes()} for table in tables]
    content = {"format": SNAPSHOT_FORMAT, "tables": records}
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            system.fsync(file.fileno())
        # mkstemp gives 0600; the DAG processor may run as another user, and no secret is inside.
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def snapshot_lock(path: str | Path) -> Iterator[None]:
    """Hold the writers' lock of a snapshot, a file beside it; make the folder if it is absent.

    Raises UnsupportedStoreError on a system without locks on files.
    """
    if system.fcntl is None:
        raise UnsupportedStoreError(
            f"cannot lock {path}: this system has no locks on files (fcntl); on Windows export "
            "the catalog in WSL"
        )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(f".{target.name}.lock"), "w") as lock:
        system.fcntl.flock(lock, system.fcntl.LOCK_EX)
        yield
