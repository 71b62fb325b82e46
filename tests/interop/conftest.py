"""Fixtures of the tests with Lance's and LanceDB's own clients."""

from typing import Any

import pytest
from support.data.merging import DIVIDED, Merge


@pytest.fixture(
    params=[
        pytest.param({}, id="merged by one worker"),
        pytest.param(DIVIDED, id="merged in parts", marks=pytest.mark.slow),
    ]
)
def merge(request: pytest.FixtureRequest) -> Merge:
    """Return a merge of all that waits, which must not depend on how it is divided."""
    options: dict[str, Any] = request.param
    return lambda table: table.merge(**options)
