"""Mergers that die half-way."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from support.stores.faulty_store import Killed

import memwal
from memwal.jobs.merge import commit as committing


def half_merge(table: memwal.Table, *, step: str, done: int) -> None:
    """Merge one generation a commit, by a merger that dies.

    Parameters
    ----------
    step : {"_upsert", "_delete"}
        What it is about to do when it dies; what there is to delete is done first.
    done : int
        How often it does so before.
    """
    real, left = getattr(committing, step), done

    def until_death(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return real(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(committing, step, until_death)
        table.merge(commit_bytes=1)
