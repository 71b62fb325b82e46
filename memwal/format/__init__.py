"""Encoders and decoders of everything stored in a MemWAL table. No I/O happens here."""
