"""Collecting what nobody needs any more (spec: Garbage Collector).

Each kind of garbage has its collector, which decides about one thing after another and says why;
none keeps state besides the table. In one region, all decisions are made from one look at its
manifests. What a run that dies leaves:

| step | what protects readers and writers | a run that dies after it leaves |
|---|---|---|
| read what is in use | what cannot be read ends the run: nothing was deleted | nothing |
| sync the local file system | Lance syncs no commit; the one that replaced the garbage is durable | nothing |
| folders of dropped generations | not named by the version of a grace period ago, nor by the newest | a folder without its bloom filter, which is no generation for anybody; the next run takes the rest |
| folders that were never named | their age; the manifest is looked at again; writers look before they name one, and after | the same |
| log entries | covered by generations of which none is named, since a grace period; the newest entry stays | gaps in front of where a replay begins |
| manifests, oldest first, one by one | those that bound the log stay; the hint names a later one first | a history that begins later |
| drop generations from the manifest | epoch and everything else stay as they are, by compare-and-swap | folders that the next run takes |
| old versions of the base table | the version that is kept is synced again: somebody may have committed it since | Lance's clean-up begins anew |
| index files, staged files | their age; all stored versions were read after they were listed | a part of an index that nothing names |
| tags of reads that have ended | looked at again before each goes; they held nothing in this run | a tag that the next run takes |

Tags and branches that come while a run is under way are noticed before every few regions, and
before a folder goes, which is a grace period after its generation was dropped. What is left is a tag
on a version that was replaced longer ago than the retention, made within the seconds between that
look and the commit or delete: its rows are all there, and only generations that were merged later
are not. Two collectors at once make the same decisions; each delete is fine with nothing to delete.
"""  # noqa: E501

from memwal.maintenance.garbage.ages import (
    DEFAULT_GRACE,
    DEFAULT_INDEX_AGE,
    DEFAULT_ORPHAN_AGE,
    DEFAULT_RETENTION,
)
from memwal.maintenance.garbage.decisions import CollectionResult, Decision, Kind, Reason
from memwal.maintenance.garbage.job import collect_garbage

__all__ = [
    "collect_garbage",
    "CollectionResult",
    "Decision",
    "Kind",
    "Reason",
    "DEFAULT_GRACE",
    "DEFAULT_INDEX_AGE",
    "DEFAULT_ORPHAN_AGE",
    "DEFAULT_RETENTION",
]
