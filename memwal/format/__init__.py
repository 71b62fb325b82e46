"""Pure encoding of everything that stands in a MemWAL table's storage. No I/O happens here."""
