"""The base table and its MemWAL index details: reading, and changes by compare-and-swap."""
