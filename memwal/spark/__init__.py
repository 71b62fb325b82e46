"""Maintenance jobs on Spark, and tables as Spark data frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession, *, storage_options: Mapping[str, str] | None = None) -> None:
    """Make ``spark.read.format("memwal")`` known to a session.

    See :func:`memwal.spark.data_source.register`.
    """
    from memwal.spark import data_source

    data_source.register(spark, storage_options=storage_options)
