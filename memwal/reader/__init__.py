"""Readers: snapshot of a table, merging scan, point lookup, and explain."""
