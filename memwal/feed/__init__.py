"""Feed of changes: the rows of a table that changed after a token.

The sources of changes, the place of a token in each, and the consequences when the source goes:

* **log entries and generations**: for each region, the token has the newest generation and the
  newest log entry that the feed saw. A generation with a higher number, and rows of a later entry,
  are changes. Of a generation that was flushed from entries on both sides of the token, every row
  is a change, unless no entry behind the token was flushed since;
* **merges**: the token has the version of the base table. A commit that merged only generations
  that the token has seen changed nothing that a reader sees, and is passed over. If it merged rows
  that the token has seen along with others, its other generations, which are stored still, tell
  which keys changed. If it merged no such rows, and its generations are stored, their tombstones
  tell which keys were removed. Any other merge counts as a direct write;
* **direct writes** to the base table: the versions between the token and now are compared one by
  one, by fragments and deletion files (:mod:`memwal.feed.base_changes`);
* **compactions** move rows: their commits tell from which fragments, so that a row is a change
  after them exactly if it was one before.

Collected generations were merged before: then the base table tells the change, by its row of today,
or by the key that an older version has and the newest version lacks. Two kinds of changes it cannot
tell, and :class:`memwal.errors.TokenExpiredError` is raised: which keys were deleted since, if the
version that the token names was cleaned up; and a key that the token's reader saw in a log or a
generation, if a merge of that together with a later delete left no trace of it, and these were
collected. A tag on the version keeps both, as the collector keeps generations that a tagged version
does not have.

The log grain reads every version from the logs (:mod:`memwal.feed.log_rows`), and counts each merge
as seen. The changes of the base table that are left are direct writes, and come last: a row that no
merge made is newer than all merged versions of its key, and is left out if its key has unmerged
ones. After the table went back, merges count as direct writes.

Without a primary key, the log grain tells each row once: of the logs by position, of direct writes
by fragment. Three questions the base table cannot answer, and the feed is refused: which of its
rows are of collected entries, as a commit merges several generations into one fragment; which rows
were returned before the table went back, unless it has the fragments of a version since the token,
and no less merge progress; and which rows a merge wrote in versions that were cleaned up.

A feed returns the row that a key has when it is made, so a change that cannot be told from an
older one is returned once more, as an upsert, or as a delete of a key that is not there.

A process that pauses, dies or repeats: a feed writes nothing. Its token is fixed when it is made,
and its rows are those of that moment. If a source of them is collected before the first use, that
plans anew and returns newer changes too; a later use raises an error. A consumer that dies before
it stores the token reads the same changes, or newer rows of the same keys, once more. If it read a
row that was deleted since, only the tombstone may tell: the feed reads the tombstones of all merged
generations behind its token that are still stored. A writer, merger or collector at work changes
which source tells of a change, and not whether one does: regions are read before their logs, and
the base table last, as for every read.
"""
