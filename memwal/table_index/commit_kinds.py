"""What a commit to the base table did, as Lance records it."""

from __future__ import annotations

from memwal.errors import ObjectNotFoundError
from memwal.table_index.base_table import BaseTable, translate_lance_error

REWRITE = "Rewrite"
"""A compaction: other fragments with the same rows."""


def commit_kind(base: BaseTable, version: int) -> str | None:
    """Name of the Lance operation that made a version; None when that is not recorded any more.

    Raises
    ------
    StoreError
        The record cannot be read.
    """
    try:
        transaction = base.dataset.read_transaction(version)
    except TypeError as error:
        # pylance cannot show what became of the indexes that a rewrite remapped.
        if "RewrittenIndex" in str(error):
            return REWRITE
        raise
    except (OSError, ValueError, RuntimeError) as error:
        translated = translate_lance_error(error, f"reading the commits of {base.location}")
        if isinstance(translated, ObjectNotFoundError):
            return None
        raise translated from error
    return None if transaction is None else type(transaction.operation).__name__
