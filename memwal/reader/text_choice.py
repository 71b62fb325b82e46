"""Which text index of a data set answers for a column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwal.errors import InvalidInputError
from memwal.table_index.base_table import BaseTable

if TYPE_CHECKING:
    import lance
    from lance.lance.indices import IndexDescription

_ROWS = "row"


def text_columns(base: BaseTable) -> list[str]:
    """Columns with a text index whose documents are rows, each once."""
    found = (
        description.field_names[0]
        for description in base.dataset.describe_indices()
        if len(description.field_names) == 1 and _is_of_rows(description)
    )
    return list(dict.fromkeys(found))


def find_text_index(dataset: lance.LanceDataset, column: str) -> IndexDescription | None:
    """The text index of a column whose documents are rows, if there is one."""
    descriptions: list[IndexDescription] = dataset.describe_indices()
    for description in descriptions:
        if list(description.field_names) == [column] and _is_of_rows(description):
            return description
    return None


def require_text_index(base: BaseTable, column: str) -> IndexDescription:
    """The text index of a column of the base table.

    Raises
    ------
    InvalidInputError
        There is none, or only one whose documents are the elements of lists: its scores are those
        of elements, of which a row has several.
    """
    found = find_text_index(base.dataset, column)
    if found is not None:
        return found
    only_elements = any(
        list(description.field_names) == [column] and is_text_index(description.index_type)
        for description in base.dataset.describe_indices()
    )
    raise InvalidInputError(
        (
            f"the text index of column {column} takes each element of a list as a document of its "
            "own, and rows are what is searched for; "
            if only_elements
            else f"column {column} has no text index; "
        )
        + f"create one on the base table with create_scalar_index({column!r}, 'INVERTED')"
    )


def is_text_index(kind: str) -> bool:
    """Whether pylance calls a text index so."""
    return kind == "Inverted"


def _is_of_rows(description: IndexDescription) -> bool:
    if not is_text_index(description.index_type):
        return False
    granularity = description.details.get("document_granularity") or _ROWS
    return bool(granularity == _ROWS)
