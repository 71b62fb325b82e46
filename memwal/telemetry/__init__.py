"""Spans and metric definitions over OpenTelemetry's API; neither reading nor writing needs them.

Metrics of writers are in :mod:`memwal.writer.metrics`, metrics of jobs in
:mod:`memwal.jobs.metrics`. :mod:`memwal.spark.runner` sets OpenTelemetry's SDK up in the programs
of memwal when the environment asks for it, and :mod:`memwal.exporter` serves the catalog's figures
to Prometheus.
"""
