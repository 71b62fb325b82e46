"""MemTables: rows in memory in log order, and the indexes over them."""
