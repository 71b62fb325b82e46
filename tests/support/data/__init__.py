"""Tables and rows for tests."""
