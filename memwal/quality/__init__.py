"""Data quality: expectations, the gate of merges, quarantine, and reports."""
