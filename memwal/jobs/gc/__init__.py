"""Garbage collection: delete objects that no reader, writer or merger needs (spec: Garbage Collector).

Each kind of garbage has a collector (:mod:`memwal.jobs.gc.collector`), which decides about one
object or folder after another, states the reason, and deletes; it keeps no state besides the table.
Within one region, all decisions are made from one read of its manifests. The steps of a run, and
the garbage that it leaves if it dies:

| step | protection of readers and writers | a run that dies after it leaves |
|---|---|---|
| read the pins: the generations in use | a pin that cannot be read ends the run: nothing was deleted | nothing |
| sync the local file system | Lance does not sync its commits; the commit that replaced the garbage becomes durable | nothing |
| folders of dropped generations | neither the manifest version of one grace period ago nor the newest one names them | a folder without its bloom filter, which no process takes for a generation; the next run deletes the rest |
| folders that were never named | their age; the manifest is read again; writers check a folder after they wrote it and before they name it | the same |
| log entries | they are covered by generations that no manifest has named for a grace period; the newest entry stays | gaps in front of the position where a replay begins |
| manifests, oldest first, one by one | the versions that bound the log stay; the hint names a later version first | a history that begins later |
| drop generations from the manifest | the epoch and everything else stay as they are, by compare-and-swap | folders that the next run deletes |
| tags of consumers that expired, or moved on | the expiry is stored by compare-and-swap first: see :mod:`memwal.feed.consumer_state` | tags that the next run deletes |
| tags of reads that have expired | each is checked again before it is deleted; they pinned nothing in this run | a tag that the next run deletes |
| index files, staged files | their age; all stored versions were read after these files were listed | a part of an index that no version names |
| old versions of the base table | the version that is kept is synced again: another process may have committed it since | Lance's clean-up begins anew |

On a local disk, nothing behind a symbolic link in the table is deleted, and the manifests of a
region behind one are not changed: they could be those of another table. Objects that stay for this
reason are reported, and the run continues.

Tags and branches that are created during a run are noticed before every few regions, and before a
folder is deleted, which is a grace period after its generation was dropped. One case remains: a tag
on a version that was replaced longer ago than the retention, created within the seconds between
that check and the commit or delete. The rows of that version are all there; only generations that
were merged later are not. Two collectors at once make the same decisions; each delete succeeds if
there is nothing to delete.
"""  # noqa: E501

from __future__ import annotations

from memwal.jobs.gc.decision import CollectionResult, Decision, GarbageKind, Reason
from memwal.jobs.gc.job import collect_garbage

__all__ = [
    "collect_garbage",
    "CollectionResult",
    "Decision",
    "GarbageKind",
    "Reason",
]
