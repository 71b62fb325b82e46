"""MemTables: rows in memory, in the order of the log, and the indexes over them."""
