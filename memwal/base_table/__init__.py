"""The base table and its MemWAL index details: reads, and commits by compare-and-swap."""
