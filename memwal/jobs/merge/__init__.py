"""Merge job: flushed generations into the base table."""
