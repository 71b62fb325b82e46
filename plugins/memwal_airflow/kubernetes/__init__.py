"""Jobs whose driver runs as a pod."""
