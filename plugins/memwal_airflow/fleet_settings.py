"""Settings of the fleet DAG in section ``[memwal]`` of ``airflow.cfg``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from airflow.sdk.configuration import conf

from memwal.errors import InvalidInputError
from memwal_airflow import SECTION

DEFAULT_SCHEDULE = "@hourly"
DEFAULT_VERIFIED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A folder, or a bucket and a path in it, that is searched for tables."""

    uri: str
    storage_options_ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Settings of the fleet DAG, by the names that they have in ``airflow.cfg``."""

    # Entries divided by commas or new lines, each a prefix and, after a space, a reference to its
    # storage options.
    discover: tuple[Prefix, ...] = ()
    # Maintain discovered tables from then on; they are registered in any case.
    discover_enable: bool = False
    fleet_schedule: str | None = DEFAULT_SCHEDULE  # A cron expression, or None for "none".
    verify_tables_per_day: int = DEFAULT_VERIFIED

    @classmethod
    def read(cls) -> Self:
        """Read the settings; ``AIRFLOW__MEMWAL__DISCOVER`` and so on override the file."""
        schedule = conf.get(SECTION, "fleet_schedule", fallback=DEFAULT_SCHEDULE).strip()
        verified = conf.getint(SECTION, "verify_tables_per_day", fallback=DEFAULT_VERIFIED)
        return cls(
            discover=parse_prefixes(conf.get(SECTION, "discover", fallback="")),
            discover_enable=conf.getboolean(SECTION, "discover_enable", fallback=False),
            fleet_schedule=None if schedule.lower() in ("", "none") else schedule,
            verify_tables_per_day=verified,
        )


def parse_prefixes(text: str) -> tuple[Prefix, ...]:
    """Parse the value of ``discover``; raise InvalidInputError for an invalid entry."""
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
