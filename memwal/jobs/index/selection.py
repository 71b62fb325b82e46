"""Choose the maintained indexes: carried by generations, and caught up after merges.

An index that is added has caught up with nothing at first, so whatever is merged from then on stays
stored until an index build has extended the index. Generations that were flushed before lack it;
their rows are searched without. An index that is removed stays where it is, and is no longer
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
    """Maintain more indexes, or fewer, from the next flush on.

    Our open writers notice by themselves; native ones have to be opened again. When it is done
    already, nothing happens.

    Parameters
    ----------
    location : TableLocation
        Where the table is: ``table.location`` of an open one.
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
        There is no table, or no MemWAL.
    ConflictError
        Other processes were always faster; call again.
    """
    both = set(add) & set(remove)
    if both:
        raise InvalidInputError(f"{', '.join(sorted(both))} cannot be added and removed at once")

    def change(base: BaseTable) -> IndexDetails:
        unknown = sorted(set(add) - set(index_names(base)))
        if unknown:
            raise InvalidInputError(
                f"{location} has no index {', '.join(unknown)}; build it on the Lance table first, "
                f"or choose of {', '.join(sorted(index_names(base))) or 'none'}"
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
        # One that comes back has to catch up anew.
        catchup = {k: found for k, found in base.details.catchup.items() if k not in remove}
        return replace(base.details, maintained_indexes=tuple(names), catchup=catchup)

    return list(maintained_index_names(update_details(location, change)))
