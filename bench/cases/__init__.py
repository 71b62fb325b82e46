"""The benchmarks, one subject in each module."""
