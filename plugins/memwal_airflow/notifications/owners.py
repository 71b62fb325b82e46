"""Settings of Airflow that differ by the owner of a table."""

from __future__ import annotations

from memwal.errors import InvalidInputError
from memwal.util.safe_json import read_json
from memwal_airflow import SECTION
from memwal_airflow.provider.settings import Setting


def setting_by_owner(setting: Setting[str]) -> dict[str, str]:
    """Return a setting that is a JSON object from owners to texts; empty if unset.

    Raises ``InvalidInputError``, with its example, if it is anything else.
    """
    text = setting.read().strip()
    try:
        found = read_json(text) if text else {}
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InvalidInputError(
            f"[{SECTION}] {setting.key} in airflow.cfg must be a JSON object by owners: "
            f"{setting.example}"
        )
    return found
