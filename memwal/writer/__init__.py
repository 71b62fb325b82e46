"""Writers: the writer of a table, its open regions, routing, and metrics."""
