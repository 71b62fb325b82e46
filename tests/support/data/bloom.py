"""The fixed bloom filter of some keys, as a generation has it."""

from collections.abc import Sequence

import pyarrow as pa

from memwal.format.bloom import FilterBuilder


def build_bloom_filter(key_columns: Sequence[pa.Array | pa.ChunkedArray]) -> bytes:
    """Return the content of ``bloom_filter.bin`` for all keys."""
    builder = FilterBuilder(0)
    builder.add(key_columns)
    return builder.bloom_filter()
