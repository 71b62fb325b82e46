"""What a collection would do, asked of the table itself, and kept for a moment."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from airflow.sdk.exceptions import AirflowException
from fastapi import HTTPException, status

from memwal.catalog import ManagedTable
from memwal.errors import MemWalError
from memwal.jobs.gc import collect_garbage
from memwal.jobs.gc.decision import summarise
from memwal_airflow.hooks.storage_options import table_at

KEPT_SECONDS = 30.0
_MOST_KEPT = 1000


@dataclass(slots=True)
class _Kept:
    """An answer, and the lock under which it is made, once for all who wait for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: dict[str, Any] | None = None
    until: float = 0.0


_kept: dict[tuple[str, datetime], _Kept] = {}
_changing = threading.Lock()


def explained(table: ManagedTable) -> dict[str, Any]:
    """What goes and what stays, as of at most 30 s ago.

    Raises
    ------
    HTTPException
        502: the table could not be opened or read.
    """
    kept = _place(table)
    with kept.lock:
        if kept.answer is None or time.monotonic() >= kept.until:
            kept.answer = _look(table)
            kept.until = time.monotonic() + KEPT_SECONDS
        return kept.answer


def _place(table: ManagedTable) -> _Kept:
    # A changed policy or address asks anew.
    key = (table.name, table.updated_at)
    with _changing:
        if key not in _kept and len(_kept) >= _MOST_KEPT:
            _kept.clear()
        return _kept.setdefault(key, _Kept())


def _look(table: ManagedTable) -> dict[str, Any]:
    at = datetime.now(UTC)
    try:
        opened = table_at(table.uri, table.storage_options_ref)
        # Costs some requests to the store for each region.
        options = replace(table.policy.gc_options(), dry_run=True, explain=True)
        result = collect_garbage(opened.location, options)
    except MemWalError as error:
        # Its messages hold no credentials.
        raise _cannot(table, f"{type(error).__name__}: {error}") from error
    except AirflowException as error:
        # The connection does not exist, or the secrets backend refuses; neither is for readers.
        raise _cannot(table, f"its storage options cannot be read ({type(error).__name__})") from (
            error
        )
    return {
        "at": at.isoformat(),
        **summarise(result.decisions).to_dict(),
        "problems": list(result.problems),
    }


def _cannot(table: ManagedTable, why: str) -> HTTPException:
    return HTTPException(status.HTTP_502_BAD_GATEWAY, f"{table.name} cannot be looked at: {why}")
