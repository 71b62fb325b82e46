"""Prometheus exporter: the catalog's figures of tables and jobs over HTTP."""
