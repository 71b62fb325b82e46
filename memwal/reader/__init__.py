"""Reads: merging scan, point lookup, and the plan, caches and key comparison that all reads share.

The names of a read's stages, from the table to its rows:

* ``TableSnapshot``: a base-table version and the region manifests that were read before it;
* ``ReadPlan``: the generations that a read uses, and those it leaves out with the reason;
* ``ReadSources``: the plan with its generations opened;
* ``NewestRows``: the newest row of each key among the generations;
* ``MergedRows``: the rows of the answer, from the generations and the base table.

A scan, a lookup and a search go through all of them in one process. Spark divides the plan into
partitions in the driver (``memwal.spark.source.scan_plan.LoadPlan``), and its tasks do the rest.
"""
