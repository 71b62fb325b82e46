"""Helpers below all other rooms: clock, logs, memory, redaction, timers, optional packages."""
