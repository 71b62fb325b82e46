"""Caches of the reader: one memory budget, invalidated by table version."""
