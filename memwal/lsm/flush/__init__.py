"""Flush: writing stored rows as a generation."""
