"""Settings of Airflow that differ by the owner of a table."""

from __future__ import annotations

from airflow.sdk.configuration import conf

from memwal.errors import InvalidInputError
from memwal.util.safe_json import read_json
from memwal_airflow import SECTION


def setting_by_owner(key: str, *, example: str) -> dict[str, str]:
    """Return a setting of ``[memwal]`` that is a JSON object from owners to texts; empty if unset.

    Raises ``InvalidInputError``, with an ``example``, if it is anything else.
    """
    text = str(conf.get(SECTION, key, fallback="") or "").strip()
    try:
        found = read_json(text) if text else {}
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InvalidInputError(
            f"[{SECTION}] {key} in airflow.cfg must be a JSON object by owners: {example}"
        )
    return found
