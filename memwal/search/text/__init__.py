"""Full-text search: query, index files, matching, and ranking over all sources."""
