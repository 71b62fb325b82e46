"""Frozen records that the catalog returns, and checks of their names and addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self
from urllib.parse import urlsplit

from memwal.errors import InvalidInputError
from memwal.jobs.policy import Policy
from memwal.jobs.status import TableStatus
from memwal.storage.uris import parse_uri
from memwal.util.safe_json import is_unicode

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
CONNECTION_PREFIX = "airflow:"
STATUS_JOB = "look"
"""Name under which a failure to read the status of a table is stored, among the names of jobs."""
CONNECTION_REF = re.compile(r"airflow:[A-Za-z0-9_.-]{1,200}")

_FILE_REF = re.compile(r"/[^\0\n]*\.json")

# JSON types of the fields of a record.
_KINDS: Mapping[str, Any] = {
    "str": str,
    "str | None": str | None,
    "bool": bool,
    "Policy": Mapping,
    "datetime": str,
}
_TIMES = ("created_at", "updated_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedTable:
    """One table that is registered for maintenance.

    Attributes
    ----------
    name : str
        1 to 63 lower-case letters, digits, ``_`` and ``-``; unique in the catalog.
    uri : str
        Where the table is. Must not hold credentials.
    storage_options_ref : str or None
        Where the storage options are, never the options themselves: the absolute path of a JSON
        file, or ``airflow:{connection id}`` for the extra of an Airflow connection.
    policy : Policy
        When and how it is maintained.
    owner : str
        Who to ask.
    enabled : bool
        False keeps the table registered and stops its maintenance.
    created_at, updated_at : datetime
        In UTC.
    """

    name: str
    uri: str
    storage_options_ref: str | None
    policy: Policy
    owner: str
    enabled: bool
    created_at: datetime
    updated_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "name": self.name,
            "uri": self.uri,
            "storage_options_ref": self.storage_options_ref,
            "policy": self.policy.to_dict(),
            "owner": self.owner,
            "enabled": self.enabled,
            "created_at": self.created_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a record from the result of :meth:`to_dict`.

        Parameters
        ----------
        values : mapping
            Result of :meth:`to_dict`.

        Raises
        ------
        InvalidInputError
            The policy is invalid (see :meth:`Policy.from_dict`), a key is missing, or its value is
            of another type.
        """
        kinds = {field.name: _KINDS[str(field.type)] for field in fields(cls)}
        record = values if isinstance(values, Mapping) else {}
        wrong = [
            key
            for key, kind in kinds.items()
            if key not in record or not isinstance(record[key], kind)
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
        policy = Policy.from_dict(record["policy"])
        return cls(**{key: record[key] for key in kinds} | times | {"policy": policy})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Number of rows that :meth:`memwal.catalog.Catalog.prune` deleted from the catalog.

    Attributes
    ----------
    runs, samples : int
        Job runs, and backlog samples.
    """

    runs: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogSample:
    """Backlog of a table at one moment, summed over its regions.

    Attributes
    ----------
    table : str
        Name of the managed table.
    at : datetime
        In UTC.
    generations, rows, bytes : int
        Flushed and not merged.
    wal_entries : int
        Entries of the write-ahead logs that no flushed generation covers.
    version, base_rows, regions : int or None
        Version and rows of the base table, and the number of regions. These attributes and the
        following ones are None in samples of a memwal version that did not record them.
    oldest_seconds : float or None
        Age of the oldest generation of the backlog; None when there is no backlog.
    lag_generations, lag_rows : int or None
        Merged generations, and rows of the base table, that the index furthest behind does not
        cover; None when no index is maintained.
    reclaimable_bytes : int or None
        Bytes in memory of generations that only retention keeps.
    """

    table: str
    at: datetime
    generations: int
    rows: int
    bytes: int
    wal_entries: int
    version: int | None = None
    base_rows: int | None = None
    regions: int | None = None
    oldest_seconds: float | None = None
    lag_generations: int | None = None
    lag_rows: int | None = None
    reclaimable_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The latest status of a table.

    Attributes
    ----------
    table : str
        Name of the managed table.
    at : datetime
        When the status was read, in UTC.
    status : TableStatus
        Status at that time: ages count up to it.
    """

    table: str
    at: datetime
    status: TableStatus


def check_name(name: str) -> str:
    """Return a table name if it is valid for the catalog, a DAG id and an asset.

    Raises
    ------
    InvalidInputError
        The name is invalid.
    """
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

    Raises
    ------
    InvalidInputError
        The URI is empty, or has a user, a password or query parameters in it. The message does not
        repeat the URI, so that a password does not end up in a log.
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

    Raises
    ------
    InvalidInputError
        The reference is neither an absolute path of a ``.json`` file nor ``airflow:{connection
        id}``. The message does not repeat it, since a secret may be given by mistake.
    """
    if ref is None or CONNECTION_REF.fullmatch(ref):
        return ref
    if _FILE_REF.fullmatch(ref) and is_unicode(ref):
        return ref
    raise InvalidInputError(
        "storage_options_ref must be the absolute path of a JSON file (ending in .json) or "
        "'airflow:' and a connection id; the catalog keeps no storage options themselves."
    )
