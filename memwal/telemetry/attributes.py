"""Names of the attributes that metrics and spans have."""

from __future__ import annotations

TABLE = "memwal.table"
"""Name of a managed table."""

TABLE_URI = "memwal.table.uri"
"""Address of a table, which holds no credentials."""

REGION_ID = "memwal.region.id"
"""UUID of a region."""

JOB = "memwal.job"
"""``merge``, ``index``, ``compact``, ``snapshot`` or ``gc``."""

OUTCOME = "memwal.outcome"
"""How a run ended: ``succeeded``, ``failed`` or ``abandoned``."""

INDEX = "memwal.index"
"""Name of a maintained index."""

OWNER = "memwal.owner"
"""Who to ask about a table."""

ROWS = "memwal.rows"
"""Rows that a step works on."""

VERSION = "memwal.version"
"""Version of the base table that a step starts from."""
