"""Caches of the reader: LRU, with one memory budget, invalidated by the tags of their keys."""
