"""Programs that a benchmark runs as processes of their own."""
