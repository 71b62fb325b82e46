"""Spans and metric definitions over OpenTelemetry's API, which reads and writes do not need.

Metrics of writers are in :mod:`memwal.writer.metrics`, metrics of jobs in
:mod:`memwal.jobs.metrics`. :mod:`memwal.spark.runner` sets up OpenTelemetry's SDK in the programs
of memwal if the environment configures it. :mod:`memwal.exporter` serves the catalog's figures to
Prometheus.
"""
