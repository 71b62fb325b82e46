"""Maintenance jobs: each plans tasks, runs them on a given runner, and adds up the results."""
