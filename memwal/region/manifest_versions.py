"""Finding the version of a region's manifest in which something happened, by reading a few.

Versions are trimmed from the front, so that those from the newest one backwards have no gap; one
that stands before a gap was put there by a process that slept through a trim, and tells nothing.
Generation numbers only grow from one version to the next, which makes a search a bisection.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container

from memwal.format.region_manifest import RegionManifest


def unbroken(stored: Container[int], newest: int) -> range:
    """The versions from the newest one backwards, up to the first gap; oldest first."""
    first = newest
    while first - 1 in stored:
        first -= 1
    return range(first, newest + 1)


def newest_before(
    read: Callable[[int], RegionManifest], versions: range, generation: int
) -> RegionManifest | None:
    """The newest of some versions by which a generation was not flushed yet; None if all have it.

    Parameters
    ----------
    read : callable
        Gives a version.
    versions : range
        Without a gap; at least one.
    """
    if read(versions[-1]).current_generation <= generation:
        return read(versions[-1])
    found = bisect_right(versions[:-1], generation, key=lambda v: read(v).current_generation)
    return read(versions[found - 1]) if found else None
