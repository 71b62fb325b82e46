"""Writes of Spark: tasks stage rows by region, and the driver writes them into the regions.

A region has one writer at a time, and Spark does not tell its Python data sources how the rows of a
write are divided into tasks: every task may have rows of every region. If tasks claimed regions,
they would fence each other, and no task could tell which row of a key is the newest. Tasks
therefore only convert, route and stage rows: in the message to the driver, or, if they are many, in
an object of ``_memwal/writes`` with a random name. The commit, one process at the driver, claims
each region once, and writes all rows of it in one call.

Processes that die, pause or repeat:

- A task, at any moment: rows count if their message is among the messages that Spark commits, one
  for each partition. Objects that other attempts staged, also later, are deleted by the garbage
  collection, by age.
- The driver before the commit: no region has any row.
- The commit, after some regions: a stream repeats the batch, which is a step (docs/design/0008):
  regions that have it write nothing. A write with ``source`` and ``version`` is a step as well.
  Without them the call fails, and repeating it upserts the rows again.
- The commit pauses, and the batch is repeated during the pause: the later claim fences the earlier
  one. A claim finds the step in the log, so the process that wakes writes nothing, in any order.
- The commit after the last region: staged objects are left for the garbage collection, and the
  repeated batch finds its step in every region.
- The table gets another region spec between task and commit: the commit may claim only the regions
  that the tasks found, and the writer refuses rows of others before it writes any.
- A staged object is gone (the write took longer than the collector's minimum age): an error.
"""
