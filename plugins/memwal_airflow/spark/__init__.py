"""Spark applications that tasks start, find again and end."""
