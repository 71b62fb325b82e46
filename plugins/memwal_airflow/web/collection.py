"""Dry runs of the garbage collection for the page, cached for 30 s."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from airflow.sdk.exceptions import AirflowException
from fastapi import HTTPException, status

from memwal.catalog import ManagedTable
from memwal.errors import MemWalError
from memwal.fleet import open_managed
from memwal.jobs.gc import collect_garbage
from memwal.jobs.gc.decision import summarise
from memwal.util.records import JsonObject
from memwal_airflow.hooks.storage_options import read_options

CACHE_SECONDS = 30.0
_MAX_CACHED = 1000


@dataclass(slots=True)
class _CachedAnswer:
    """An answer, and the lock under which one request computes it for all that wait."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: JsonObject | None = None
    until: float = 0.0


_cache: dict[tuple[str, datetime], _CachedAnswer] = {}
_cache_lock = threading.Lock()


def explain_collection(table: ManagedTable) -> JsonObject:
    """Return the decisions of a collection, at most 30 s old; 502 for a broken table."""
    entry = _cache_entry(table)
    with entry.lock:
        if entry.answer is None or time.monotonic() >= entry.until:
            entry.answer = _dry_run(table)
            entry.until = time.monotonic() + CACHE_SECONDS
        return entry.answer


def _cache_entry(table: ManagedTable) -> _CachedAnswer:
    # A changed policy or address has another key, so it is computed anew.
    key = (table.name, table.updated_at)
    with _cache_lock:
        if key not in _cache and len(_cache) >= _MAX_CACHED:
            _cache.clear()
        return _cache.setdefault(key, _CachedAnswer())


def _dry_run(table: ManagedTable) -> JsonObject:
    at = datetime.now(UTC)
    try:
        opened = open_managed(table, storage_options=read_options(table.storage_options_ref))
        # Costs some requests to the store for each region.
        options = replace(table.policy.gc_options(), dry_run=True, explain=True)
        result = collect_garbage(opened.location, options)
    except MemWalError as error:
        # Its messages hold no credentials.
        raise _unreadable(table, f"{type(error).__name__}: {error}") from error
    except AirflowException as error:
        # The connection does not exist, or the secrets backend refuses; users must not see which.
        message = f"its storage options cannot be read ({type(error).__name__})"
        raise _unreadable(table, message) from error
    return {
        "at": at.isoformat(),
        **summarise(result.decisions).to_dict(),
        "warnings": list(result.warnings),
    }


def _unreadable(table: ManagedTable, why: str) -> HTTPException:
    return HTTPException(status.HTTP_502_BAD_GATEWAY, f"{table.name} cannot be read: {why}")
