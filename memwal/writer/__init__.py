"""Writers: the write-ahead log, the MemTable, the flush, one region, and many."""
