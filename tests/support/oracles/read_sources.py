"""Sources of a read by a table, or by a writer that sees its own unflushed rows."""

from __future__ import annotations

import memwal
from memwal.reader.sources.collect import ReadSources, collect_sources
from memwal.writer.table_writer import TableWriter


def sources_now(reads: memwal.Table | TableWriter) -> ReadSources:
    """Collect what a read that begins now would read."""
    memtables = reads.memtables() if isinstance(reads, TableWriter) else None
    return collect_sources(reads.location, memtables)
