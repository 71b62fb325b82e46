"""The maintenance jobs. Each plans tasks, runs them wherever it is told to, and adds up results."""
