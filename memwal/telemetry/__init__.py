"""Metrics and traces of jobs, and what the catalog tells Prometheus.

Nothing here is needed to write or to read. ``spans``, ``attributes`` and ``job_metrics`` use
OpenTelemetry's API alone; ``tracing`` sets its SDK up in the programs of memwal when the
environment asks for it; ``reading``, ``watch``, ``exposition`` and ``endpoint`` stand on the
catalog.
"""
