"""Flush: write stored rows as a generation."""
