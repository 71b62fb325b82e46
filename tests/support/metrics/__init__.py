"""Metrics and traces: what is exposed, and who collects it."""
