"""Which fragments of the base table have rows that merges brought, and nothing else."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from memwal.errors import TableSetupError
from memwal.reader.kept_names import Version, version_key
from memwal.reader.recent import Recent
from memwal.table_index.base_table import BaseTable, open_base
from memwal.table_index.commit_kinds import REWRITE, commit_kind

_KNOWN_COMMITS: Final = 1_024
# Each costs a few requests when it is seen for the first time. The rows of fragments that are older
# are looked at one by one, as those are that nobody merged.
_MOST_COMMITS: Final = 64


@dataclass(frozen=True, slots=True)
class _Commit:
    """What a version did to the fragments of the one before.

    Attributes
    ----------
    version : int
        The one before.
    key : Version
        Names the one before.
    written : frozenset of int
        Fragments that were not there, or had other files.
    is_merge : bool
        Whether merge progress went on, and nowhere back.
    sources : frozenset of int or None
        Fragments whose rows were only moved to those that were written; None when that is not so.
    """

    version: int
    key: Version
    written: frozenset[int]
    is_merge: bool
    sources: frozenset[int] | None


def merged_fragments(base: BaseTable, asked: Collection[int]) -> frozenset[int]:
    """Those of some fragments that merges wrote, be it that their rows were compacted since.

    Versions are compared, from this one back to where the fragments came from. Of a fragment that
    came in a version which is no longer stored it cannot be told, and it is left out.
    """
    open_ones = set(asked)
    commits: list[_Commit] = []
    later: BaseTable | None = base
    version, key = base.version, version_key(base)
    while open_ones and len(commits) < _MOST_COMMITS:
        commit = _commits.peek(key)
        if commit is None:
            try:
                later = later or open_base(base.location, version=version)
                earlier = open_base(base.location, version=version - 1)
            except TableSetupError:
                break
            commit = _commit(earlier, later)
            _commits.put(key, commit)
            later = earlier
        else:
            later = None
        commits.append(commit)
        if commit.written & open_ones and commit.sources is not None:
            open_ones |= commit.sources
        open_ones -= commit.written
        version, key = commit.version, commit.key
    merged: set[int] = set()
    for commit in reversed(commits):
        moved = commit.sources is not None and commit.sources <= merged
        if commit.is_merge or moved:
            merged |= commit.written
        else:
            # Also where somebody wrote other values into a fragment that stays.
            merged -= commit.written
    return frozenset(merged.intersection(asked))


def _commit(earlier: BaseTable, later: BaseTable) -> _Commit:
    before, after = _files(earlier), _files(later)
    written = frozenset(number for number, files in after.items() if before.get(number) != files)
    old, new = earlier.details.merged, later.details.merged
    is_merge = old != new and all(new.get(region, 0) >= number for region, number in old.items())
    sources = None
    if written and not is_merge and commit_kind(later, later.version) == REWRITE:
        sources = frozenset(before.keys() - after.keys())
    return _Commit(earlier.version, version_key(earlier), written, is_merge, sources)


def _files(base: BaseTable) -> dict[int, tuple[str, ...]]:
    return {
        int(fragment.fragment_id): tuple(file.path for file in fragment.data_files())
        for fragment in base.dataset.get_fragments()
    }


_commits: Recent[_Commit] = Recent(_KNOWN_COMMITS, lasting=True)
