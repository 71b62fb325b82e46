"""Defaults of a table for the options of all its writers, stored in its MemWAL details.

A change is one commit of the details. A writer reads them when it is opened.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from memwal.base_table.commit import update_details
from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.format.memwal_index import IndexDetails
from memwal.storage.location import TableLocation
from memwal.writer.region_writer.options import (
    WriterOptions,
    read_writer_defaults,
    stored_name,
    write_writer_defaults,
)


def set_writer_defaults(location: TableLocation, options: WriterOptions) -> None:
    """Store options as the defaults of a table; those that are None stay as they are.

    Raises InvalidInputError for an option that each producer sets for itself.
    """
    stored = write_writer_defaults(options)
    if not stored:
        raise InvalidInputError("no default was given; nothing was changed")

    def change(base: BaseTable) -> IndexDetails:
        details = base.details
        return replace(details, writer_config_defaults={**details.writer_config_defaults, **stored})

    update_details(location, change)


def reset_writer_defaults(location: TableLocation, options: Collection[str]) -> None:
    """Remove options from the defaults of a table, by their names in :class:`WriterOptions`.

    Raises InvalidInputError for an option that no table sets.
    """
    names = {stored_name(option) for option in options}

    def change(base: BaseTable) -> IndexDetails:
        details = base.details
        kept = {k: v for k, v in details.writer_config_defaults.items() if k not in names}
        return replace(details, writer_config_defaults=kept)

    update_details(location, change)


def writer_defaults(base: BaseTable) -> dict[str, bool | int | float]:
    """Return the settings of a version of a table, by option; durations in seconds."""
    return read_writer_defaults(base.details.writer_config_defaults)
