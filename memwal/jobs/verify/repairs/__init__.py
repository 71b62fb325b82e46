"""Repairs that take more than one step: generations from the log, rows of the log."""
