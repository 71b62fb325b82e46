"""Jobs on the whole table: checkpoint, compaction, copy, snapshot, quality and store checks."""
