"""Writer of one region: group commit, MemTables, flush, replay, partial rows."""
