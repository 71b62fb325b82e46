"""Nearest-neighbour search: query, candidates of each source, and exact ranking."""
