"""One DAG, ``memwal_drain``, for the due jobs of many tables."""
