"""What the benchmarks share: measures, tables, folders, requests and child processes."""
