"""Skips of Airflow tasks, by their reason and not by their words."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from memwal_airflow.skips import TaskSkipped, TaskSkipReason


@contextmanager
def skips(reason: TaskSkipReason, *, naming: str = "") -> Iterator[None]:
    """Expect that the block ends in a skip for this reason, whose message contains ``naming``."""
    with pytest.raises(TaskSkipped, match=re.escape(naming) or None) as caught:
        yield
    assert caught.value.reason is reason
