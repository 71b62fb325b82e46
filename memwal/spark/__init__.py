"""Maintenance jobs on Spark, and tables as Spark data frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memwal.boundary.public import public
from memwal.util.optional_deps import requires_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from memwal.spark.streaming import BatchSink

__all__ = ["foreach_batch", "register", "release"]


@public
def foreach_batch(uri: str, **options: Any) -> BatchSink:
    """Return a function for ``DataStreamWriter.foreachBatch`` that writes a stream into a table.

    See :func:`memwal.spark.streaming.foreach_batch`.
    """
    from memwal.spark import streaming

    return streaming.foreach_batch(uri, **options)


@public
def register(spark: SparkSession, *, storage_options: Mapping[str, str] | None = None) -> None:
    """Register ``spark.read.format("memwal")`` with a session.

    Executors need memwal installed, as they do for the maintenance jobs.

    Parameters
    ----------
    spark : SparkSession
        Also one of Spark Connect.
    storage_options : mapping of str to str, optional
        As Lance takes them, for every load of the session that does not set an options file. They
        are sent inside the tasks and appear neither in Spark's configuration nor in a plan.
    """
    with requires_extra("spark"):
        from memwal.spark import data_source

    data_source.register(spark, storage_options=storage_options)


@public
def release(uri: str, *, storage_options: Mapping[str, str] | None = None) -> int:
    """End the protection of the versions that the loads of this process read.

    Without it a protection ends by itself, ``protect_seconds`` after the last query or task that
    read it. Data frames that were loaded before may fail after this call, as soon as the
    generations that they read are collected. Returns how many tags there were.

    Parameters
    ----------
    uri : str
        Address of the table: a path, ``s3://``, ``gs://`` or ``az://``.
    storage_options : mapping of str to str, optional
        As Lance takes them.

    Raises
    ------
    StoreAccessError, StoreUnavailableError
        As for any write.
    """
    from memwal.spark import read_tags
    from memwal.storage.location import TableLocation

    return read_tags.release(TableLocation(uri, storage_options or {}))
