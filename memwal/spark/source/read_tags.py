"""Protect the snapshot of a load while its session reads it.

The plan's version of the base table gets a tag that expires by itself (see
:mod:`memwal.base_table.refs`). A tag protects the rows of its version from clean-ups, and
every generation that is not merged in that version from the collector: the generations that the
plan reads are among these.

No process lives as long as a data frame: Spark plans it in Python processes that end with the
planning. The tag is therefore renewed by its readers: with each query, and by tasks, before their
first batch and between batches, once a quarter of its time has passed.

Between the read of the base table and the placing of the tag, other processes may have merged and
collected. A process that did not see the tag decides by versions that existed before the tag: by
none that is newer than the plan's, if the plan's version is still the newest when the tag stands.
If it is not, the load is planned anew.

| step | dies after it | pauses before it, however long | repeats it |
|---|---|---|---|
| plan | nothing happened | | another plan |
| place the tag | a tag that no process renews: it expires, and the collector deletes it | a version that is gone cannot be tagged: planned anew | the tag of this session on this version exists, and is renewed |
| check the newest version | the same | another version is the newest by then: planned anew, a few times; after that the tag protects from every process that comes later, and a task that misses files looks for a later version | checks again |
| query or task renews | the tag holds for its time from then on | the tag has expired: it is left alone, and rows of missing files are looked for at a later version. A tag that expires between the check and the write, which takes a pause of the grace period and more, may be deleted in that very moment: the same | written once more |
| release | some tags are gone, the others expire | | nothing to delete |
"""  # noqa: E501

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final
from uuid import uuid4

from memwal.base_table.refs import ReadTag, delete_tag, list_read_tags, place_tag, renew_tag
from memwal.base_table.snapshot import BaseTable
from memwal.boundary.public import public
from memwal.errors import MemWalError, ObjectNotFoundError
from memwal.storage.location import TableLocation
from memwal.util.clock import boot_seconds
from memwal.util.log import warn_once

logger = logging.getLogger(__name__)

DEFAULT_PROTECT_SECONDS: Final = 6 * 3600
SESSION: Final = uuid4().hex[:12]
"""Name of this process in tags. The loads of a session have the name of its driver."""

_READER_DIGITS: Final = 20
_MAX_TRACKED_TAGS: Final = 1000
_renewal_times: dict[tuple[TableLocation, ReadTag], float] = {}
_lock = threading.Lock()


def protect(base: BaseTable, *, seconds: int, session: str) -> tuple[ReadTag | None, bool]:
    """Place a tag on a version before it is read; the loads of a session at one version share it.

    Returns the tag, and whether this call placed it, so that no other load relies on it. The tag is
    None if ``seconds`` is 0, or if no tag can be placed, which is logged once for a table. Raises
    ObjectNotFoundError if the version is no longer stored.
    """
    if not seconds:
        return None, False
    tag = ReadTag(seconds, base.version, session)
    try:
        if place_tag(base, tag):
            return tag, True
        if renew_tag(base.location, tag):
            return tag, False
        # It has expired, and may be deleted at any moment.
        tag = ReadTag(seconds, base.version, session + uuid4().hex[: _READER_DIGITS - len(session)])
        place_tag(base, tag)
    except ObjectNotFoundError:
        raise
    except MemWalError as error:
        warn_once(
            logger,
            "%s is read without protection: no tag can be placed (%s). A query that is older than "
            "the collector's retention may have to load it again; protect_seconds=0 places none",
            str(base.location),
            str(error),
        )
        return None, False
    return tag, True


def is_still_newest(base: BaseTable) -> bool:
    """Return whether the version that was just tagged is still the newest."""
    return int(base.dataset.latest_version) == base.version


def unprotect(location: TableLocation, tag: ReadTag) -> None:
    """Delete a tag that turned out to be useless; if that fails, it expires by itself."""
    try:
        delete_tag(location, tag)
    except MemWalError as error:
        logger.info("the tag %s of %s stays until it ends: %s", tag.name, location, error)


def renew_if_due(
    location: TableLocation,
    tag: ReadTag | None,
    *,
    clock: Callable[[], float] = boot_seconds,
) -> None:
    """Renew a tag when a quarter of its time has passed; check it at most once per eighth.

    A failure is logged and not raised: without the tag a read may fail later, but need not.
    """
    if tag is None:
        return
    now = clock()
    with _lock:
        due = _renewal_times.get((location, tag))
        if due is not None and now < due:
            return
        if len(_renewal_times) >= _MAX_TRACKED_TAGS:
            _renewal_times.clear()
        _renewal_times[location, tag] = now + tag.seconds / 8
    try:
        is_renewed = renew_tag(location, tag)
    except MemWalError as error:
        logger.warning("the tag %s of %s was not renewed: %s", tag.name, location, error)
        return
    if not is_renewed:
        warn_once(
            logger,
            "the protection of version %s of %s has expired: it was not read for the %s seconds of "
            "protect_seconds",
            str(tag.version),
            str(location),
            str(tag.seconds),
        )


@public
def release(uri: str, *, storage_options: Mapping[str, str] | None = None) -> int:
    """End the protection of the versions that the loads of this process read.

    ``memwal.spark.release``. Without it a protection ends by itself, ``protect_seconds`` after the
    last query or task that read it. Data frames that were loaded before may fail after this call,
    as soon as the generations that they read are collected. Returns how many tags there were.

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
    location = TableLocation(uri, storage_options or {})
    own_tags = [tag for tag in list_read_tags(location) if tag.reader.startswith(SESSION)]
    for tag in own_tags:
        delete_tag(location, tag)
    return len(own_tags)
