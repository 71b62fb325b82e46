"""JSON that came from elsewhere."""

from __future__ import annotations

import json
from typing import Any


def read_json(data: bytes | str) -> Any:
    """What a JSON document holds.

    Raises
    ------
    ValueError
        It is none, or nested so deeply that nobody meant it.
    """
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
