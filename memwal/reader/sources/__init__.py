"""Sources of a read: snapshot, pruning, routing of keys, and opening of generations."""
