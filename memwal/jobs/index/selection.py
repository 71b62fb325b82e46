"""Choose the maintained indexes: carried by generations, and caught up after merges.

An index that is added counts as caught up with nothing, so generations that are merged from then on
stay stored until an index build has extended it. Generations that were flushed before lack it;
their rows are searched without it. An index that is removed still exists, and is no longer
extended.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from memwal.base_table.details import update_details
from memwal.base_table.snapshot import BaseTable
from memwal.errors import InvalidInputError
from memwal.format.memwal_index import IndexDetails
from memwal.lsm.indexes.catchup import index_names, maintained_index_names
from memwal.storage.location import TableLocation


def choose_indexes(
    location: TableLocation, *, add: Collection[str] = (), remove: Collection[str] = ()
) -> list[str]:
    """Add and remove maintained indexes, from the next flush on.

    Open writers of this library notice by themselves; native ones have to be opened again. Does
    nothing if the indexes are maintained like that already.

    Parameters
    ----------
    location : TableLocation
        ``table.location`` of an open table.
    add, remove : collection of str
        Names of indexes of the base table.

    Returns
    -------
    list of str
        The maintained indexes, in their order.

    Raises
    ------
    InvalidInputError
        The table has no such index, one is to be added and removed, or one is to be removed from a
        table that maintains all its indexes.
    TableSetupError
        There is no table, or MemWAL is not enabled on it.
    ConflictError
        Other processes were always faster; call again.
    """
    both = set(add) & set(remove)
    if both:
        raise InvalidInputError(f"{', '.join(sorted(both))} cannot be added and removed at once")

    def change(base: BaseTable) -> IndexDetails:
        existing = index_names(base)
        unknown = sorted(set(add) - existing)
        if unknown:
            raise InvalidInputError(
                f"{location} has no index {', '.join(unknown)}; build it on the Lance table first, "
                f"or choose one of {', '.join(sorted(existing)) or 'none'}"
            )
        if base.details.maintain_all_indexes:
            if remove:
                raise InvalidInputError(
                    f"{location} maintains all of its indexes; drop the index from the Lance table"
                )
            return base.details
        before = base.details.maintained_indexes
        names = [name for name in before if name not in remove]
        names += [name for name in dict.fromkeys(add) if name not in before]
        # An index that is added again has to catch up again.
        catchup = {
            name: progress for name, progress in base.details.catchup.items() if name not in remove
        }
        return replace(base.details, maintained_indexes=tuple(names), catchup=catchup)

    return list(maintained_index_names(update_details(location, change)))
