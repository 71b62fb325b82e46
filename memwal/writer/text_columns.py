"""Which text columns of a MemTable can be searched, and how they are tokenized."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from memwal.errors import InvalidInputError
from memwal.memtable.row_runs import RowView
from memwal.memtable.text_rows import TextRows
from memwal.table_index.base_table import BaseTable
from memwal.writer.maintained import maintained_indexes

logger = logging.getLogger(__name__)


def text_columns(base: BaseTable, schema: pa.Schema) -> dict[str, Mapping[str, Any]]:
    """Text columns with a maintained index, and the options of its tokenizer.

    An index whose documents are not texts is left out: its rows are found once they are flushed.
    """
    found = {}
    for index in maintained_indexes(base):
        if index.kind != "INVERTED":
            continue
        options = index.recipe.options
        try:
            TextRows(index.column, options).check(RowView.of(schema, ()))
        except InvalidInputError as error:
            logger.info("index %s is not searched before a flush: %s", index.name, error)
        else:
            found[index.column] = options
    return found
