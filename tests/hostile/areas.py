"""All areas."""

from hostile import addresses, command_line, filters, policies, records, regions, rows
from hostile.harness import Area

AREAS: tuple[Area, ...] = (
    *regions.AREAS,
    *filters.AREAS,
    *policies.AREAS,
    *addresses.AREAS,
    *records.AREAS,
    *rows.AREAS,
    *command_line.AREAS,
)
