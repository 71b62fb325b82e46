"""Mergers that die half-way."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from support.stores.faulty_store import Killed

import memwal
from memwal.jobs.merge import commit as committing
from memwal.jobs.merge import divided as dividing


def half_merge(table: memwal.Table, *, step: str, done: int) -> None:
    """Merge by a merger that dies.

    Parameters
    ----------
    step : {"upsert", "delete", "raise_marks"}
        What it is about to do when it dies. The first two are of a merge of one generation a
        commit; what there is to delete is done first. The last one is of a divided merge, whose
        rows are committed.
    done : int
        How often it does so before.
    """
    divided = step == "raise_marks"
    module = dividing if divided else committing
    options = (
        {"divide_bytes": 0, "commit_bytes": 2_000, "max_tasks": 2}
        if divided
        else {"commit_bytes": 1}
    )
    real, left = getattr(module, step), done

    def until_death(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return real(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(module, step, until_death)
        table.merge(**options)
