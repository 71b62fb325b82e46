"""Parts of the LSM tree above a base table: MemTables, indexes, write-ahead log, flush."""
