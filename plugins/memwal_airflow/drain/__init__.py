"""One DAG, ``memwal_drain``, for what is due of many tables."""
