"""Registers the parts of memwal that Airflow must know by name."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class MemWalPlugin(AirflowPlugin):
    """memwal in Airflow's list of plugins."""

    name = "memwal"
