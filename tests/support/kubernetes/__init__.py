"""Kubernetes for tests: an API server, rendered charts, pod security."""
