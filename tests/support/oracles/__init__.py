"""Oracles: what a table must show, and what the tests take for granted of others."""
