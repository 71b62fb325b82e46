"""Indexes of a table, as users see them."""

from __future__ import annotations

from dataclasses import dataclass

from memwal.base_table.snapshot import BaseTable, lance_errors
from memwal.lsm.indexes.catchup import index_names, maintained_index_names


@dataclass(frozen=True, slots=True)
class TableIndex:
    """Index over columns of a table."""

    name: str
    """Name of the index."""
    kind: str
    """Lance's name of its kind, such as ``BTree``, ``Inverted`` or ``IVF_PQ``."""
    columns: tuple[str, ...]
    """Columns that it is over."""
    maintained: bool
    """Generations carry it, and stay stored until it covers them."""


def list_indices(base: BaseTable) -> list[TableIndex]:
    """Return the indexes of a version of the base table, by name."""
    with lance_errors(f"listing the indexes of {base.location}"):
        maintained = set(maintained_index_names(base))
        names = index_names(base)
        described = base.dataset.describe_indices()
    return sorted(
        (
            TableIndex(
                index.name, index.index_type, tuple(index.field_names), index.name in maintained
            )
            for index in described
            if index.name in names
        ),
        key=lambda index: index.name,
    )
