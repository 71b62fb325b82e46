"""Expectations about the rows of a table: what enters it, and what is in it."""
