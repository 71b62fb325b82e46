"""Posting lists of a text index, made of their blocks."""

from collections.abc import Sequence

import numpy as np

from memwal.search.text.postings import PostingList


def posting_list(
    blocks: Sequence[bytes], length: int, *, documents: int, varint_tail: bool
) -> PostingList:
    """Return an encoded list of so many documents."""
    starts = np.cumsum([0, *map(len, blocks)])
    return PostingList(memoryview(b"".join(blocks)), starts, length, documents, varint_tail)
