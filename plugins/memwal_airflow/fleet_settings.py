"""Settings of the fleet DAG in section ``[memwal]`` of ``airflow.cfg``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from airflow.sdk.configuration import conf

from memwal.errors import InvalidInputError
from memwal_airflow.spark.settings import SECTION

DEFAULT_SCHEDULE = "@hourly"
DEFAULT_VERIFIED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A prefix that is searched for tables.

    Attributes
    ----------
    uri : str
        A folder, or a bucket and a path in it.
    storage_options_ref : str or None
        Path of a JSON file, or ``airflow:{connection id}``.
    """

    uri: str
    storage_options_ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Settings of the fleet DAG, by the names that they have in ``airflow.cfg``.

    Attributes
    ----------
    discover : tuple of Prefix
        ``discover``: entries divided by commas or new lines, each a prefix and, after a space, a
        reference to its storage options. Empty by default.
    discover_enable : bool
        ``discover_enable``: True if discovered tables are maintained from then on. They are
        registered in any case.
    fleet_schedule : str or None
        ``fleet_schedule``: a cron expression, or ``none``. Hourly by default.
    verify_tables_per_day : int
        ``verify_tables_per_day``: how many tables are verified within a day, 3 by default.
    """

    discover: tuple[Prefix, ...] = ()
    discover_enable: bool = False
    fleet_schedule: str | None = DEFAULT_SCHEDULE
    verify_tables_per_day: int = DEFAULT_VERIFIED

    @classmethod
    def read(cls) -> Self:
        """Read the settings; Airflow also takes them from ``AIRFLOW__MEMWAL__DISCOVER`` and so on.

        Raises
        ------
        InvalidInputError
            An entry of ``discover`` has more than two parts.
        """
        schedule = conf.get(SECTION, "fleet_schedule", fallback=DEFAULT_SCHEDULE).strip()
        verified = conf.getint(SECTION, "verify_tables_per_day", fallback=DEFAULT_VERIFIED)
        return cls(
            discover=parse_prefixes(conf.get(SECTION, "discover", fallback="")),
            discover_enable=conf.getboolean(SECTION, "discover_enable", fallback=False),
            fleet_schedule=None if schedule.lower() in ("", "none") else schedule,
            verify_tables_per_day=verified,
        )


def parse_prefixes(text: str) -> tuple[Prefix, ...]:
    """Parse the value of ``discover``.

    Raises
    ------
    InvalidInputError
        An entry has more than two parts.
    """
    prefixes = []
    for entry in re.split(r"[,\n]", text):
        parts = entry.split()
        if len(parts) > 2:
            raise InvalidInputError(
                f"[memwal] discover has the entry {entry.strip()!r}; an entry is a prefix and, "
                "after a space, a reference to storage options. Divide entries by commas."
            )
        if parts:
            prefixes.append(Prefix(uri=parts[0], storage_options_ref=(parts[1:] or [None])[0]))
    return tuple(prefixes)
