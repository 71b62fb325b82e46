"""The base table and its MemWAL index details: read them, change them by compare-and-swap."""
