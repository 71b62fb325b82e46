"""What writes and commits left that died half-way: never named, never read, only taking space.

Manifests that were staged and never became a version are objects like any other, in every store; a
commit that slept for longer than their age finds its own gone, and fails as a whole. On a local
disk there are the temporary files of both libraries too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime

from memwal.maintenance.garbage.ages import Ages, moment
from memwal.maintenance.garbage.decisions import Decision, Kind, Reason
from memwal.maintenance.garbage.versions import StoredVersions
from memwal.storage import files
from memwal.storage.base import ObjectStore
from memwal.storage.location import TableLocation


def judge_staged_manifests(versions: StoredVersions, ages: Ages) -> Iterator[Decision]:
    """Decide about staged manifests of the table."""
    for info in versions.staged:
        yield _decision(info.key, info.size, info.modified, ages)


def judge_temporaries(location: TableLocation, ages: Ages) -> Iterator[Decision]:
    """Decide about the temporary files of a local table, at any depth; object stores have none."""
    root = location.local_path
    if root is None:
        return
    for file in files.walk(str(root)):
        if not files.is_staging(file.name):
            continue
        try:
            status = file.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        modified = datetime.fromtimestamp(status.st_mtime, UTC)
        yield _decision(os.path.relpath(file.path, root), status.st_size, modified, ages)


def delete_temporaries(store: ObjectStore, ages: Ages) -> None:
    """Delete the temporary files that are old enough."""
    age = datetime.now(UTC) - (ages.now - ages.guard)
    store.delete_stale_temporaries("", older_than=age)


def _decision(what: str, size: int, modified: datetime, ages: Ages) -> Decision:
    old = modified + ages.guard <= ages.now
    return Decision(
        kind=Kind.STAGING,
        what=what,
        objects=1,
        bytes=size,
        goes=old,
        reason=Reason.UNNEEDED if old else Reason.TOO_YOUNG,
        words=("the rest of a write that died" if old else "a write may still be under way"),
        until=None if old else moment(modified + ages.guard),
    )
