"""Settings of whether tables have a DAG each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final

from memwal.catalog.records import SNAPSHOT_VARIABLE, ManagedTable, read_snapshot
from memwal.errors import InvalidInputError
from memwal.spark.connect import CONNECT_PREFIX
from memwal_airflow import SECTION
from memwal_airflow.provider.settings import OWNER_ROLES, SPARK_CONN_ID, SPARK_MASTER, TABLE_DAGS

MAX_OWN_DAGS: Final = 50
"""Number of tables up to which each has a DAG by default."""

_HERE = "local"


class TableDags(StrEnum):
    """``[memwal] table_dags`` of ``airflow.cfg``: which tables have a DAG of their own."""

    AUTO = "auto"
    """``drain`` for more than :data:`MAX_OWN_DAGS` tables that start when due, unless their jobs
    may need a Spark that a single task cannot use for many tables, or rights by owner need a DAG
    for each table; else ``each``."""
    EACH = "each"
    """Every table."""
    DRAIN = "drain"
    """Tables with a schedule other than ``@due``; one DAG runs the jobs of the others."""


def are_drained(tables: Iterable[ManagedTable]) -> bool:
    """Return whether one DAG runs the jobs of the catalog's tables that start when due.

    Raises InvalidInputError if the setting is invalid.
    """
    mode = _mode()
    if mode is not TableDags.AUTO:
        return mode is TableDags.DRAIN
    if OWNER_ROLES.read():
        return False
    count = sum(table.enabled and table.starts_when_due for table in tables)
    return count > MAX_OWN_DAGS and _has_master((CONNECT_PREFIX, _HERE))


def is_here() -> bool:
    """Return whether the configured Spark runs on the machine of the task."""
    return _has_master((_HERE,))


def _has_master(prefixes: tuple[str, ...]) -> bool:
    # Of a connection, only a task may ask for the type.
    return not SPARK_CONN_ID.read() and SPARK_MASTER.read().startswith(prefixes)


def exported_tables() -> list[ManagedTable]:
    """Return the tables of the catalog's snapshot if the mode depends on them, else none.

    No file means no tables yet.
    """
    path = os.environ.get(SNAPSHOT_VARIABLE)
    if _mode() is TableDags.EACH or not path or not Path(path).exists():
        return []
    return read_snapshot(path)


def _mode() -> TableDags:
    text = TABLE_DAGS.read()
    try:
        return TableDags(text)
    except ValueError:
        raise InvalidInputError(
            f"[{SECTION}] table_dags is {text!r}; it must be one of {', '.join(TableDags)}."
        ) from None
