"""Registers the parts of memwal that Airflow must know by name."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin
from memwal_airflow import listener


class MemWalPlugin(AirflowPlugin):
    """memwal in Airflow's list of plugins."""

    name = "memwal"
    listeners: ClassVar[list[Any]] = [listener]
