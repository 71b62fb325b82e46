"""Reads of Spark: a snapshot of a table, the changes between two tokens of the feed, or a stream.

A load of a snapshot is planned in :mod:`memwal.spark.source.scan_plan`, one of changes in
:mod:`memwal.spark.source.changes_plan`. Tags keep the files that are read, as
:mod:`memwal.spark.source.read_tags` tells.

An offset of a stream is a token, or a token, the next one, and how many units of the changes
between them were read. Without ``fresh``, tokens are of flushed rows: a batch that Spark repeats
has the same rows, also after later writes, except that deletes and moved rows may be told once more
if versions between its tokens were cleaned up. With ``fresh``, rows that were in a log may be newer
when they are read again; the next batch has them too.

The columns are those at the start of the query. A column that is added later is seen by a query
that starts again, and is null in a batch of before; one that is gone is an error.

Processes that pause, die or repeat. The versions of both tokens of a batch have a read tag, or with
``consumer`` one of :mod:`memwal.feed.consumer_state`, which keeps their rows and the generations
that they lack:

- The driver, before it has noted an offset: a tag, which expires, or goes with a later commit of
  the consumer. The next start makes another token, or goes on from the newest that was noted.
- After that, before the batch is done: the offset is there, and its tag was placed before it. The
  next start places tags of its own, and plans the same batch.
- After the batch is done: Spark tells the reader of the query once it has noted the next one, or
  the next start goes on behind the batch. Only when the reader is told, the tag of the first token
  goes, and the consumer gets the second one. Until then, a tag of a later step holds it.
- Nothing runs for longer than ``protect_seconds``, or the limits of the consumer: the versions may
  be cleaned up. The next start raises TokenExpiredError or ConsumerExpiredError; a new checkpoint
  begins again. A poll that finds nothing new, and a batch within the changes until one token, count
  for the consumer as its commits do; a query that fails over and over does not.
- Another driver with the same consumer: the first one fails at its next plan or commit.
- A task: reads the rows that its part names, at any time and any number of times. If its files are
  gone, it fails, and the query with it: the next start plans the batch anew.
"""
