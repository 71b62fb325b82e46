"""A model of the base table: versions, rows, progress of merges and indexes, tags.

It stands in the place of Lance, with the rules of its commits: one is made from a version, and is
refused when somebody else's touched the same rows since, or what the committer says it rests on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from simulation.world import Process, World

from memwal.errors import ConflictError, StoreUnavailableError

Progress = Mapping[UUID, int]


@dataclass(frozen=True)
class Version:
    """One version. ``rows`` are ``(key, value)``, so that a key can be there twice by mistake."""

    number: int
    written: datetime
    rows: tuple[tuple[int, int], ...] = ()
    merged: Progress = field(default_factory=dict)
    caught_up: Progress = field(default_factory=dict)
    kind: str = "other"  # or "rows" of a divided merge, "marked", "index"
    rows_of: Progress = field(default_factory=dict)  # what a divided merge committed rows of

    def of(self, keys: set[int]) -> list[tuple[int, int]]:
        """Its rows with these keys."""
        return [row for row in self.rows if row[0] in keys]

    def covered(self, region: UUID) -> int:
        """Up to which generation of a region rows and index have everything."""
        return min(self.merged.get(region, 0), self.caught_up.get(region, 0))


class BaseTable:
    """All versions of the table, the newest last; those that are cleaned up are ``gone``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.versions = [Version(1, world.time())]
        self.tags: dict[str, Version] = {}
        self.gone: set[int] = set()

    @property
    def newest(self) -> Version:
        """The latest version."""
        return self.versions[-1]

    def latest_at(self, moment: datetime) -> Version:
        """What was the newest version then; the first one if there was none."""
        older = [version for version in self.versions if version.written <= moment]
        return older[-1] if older else self.versions[0]


class BaseClient:
    """The base table as one process reaches it."""

    def __init__(self, base: BaseTable, process: Process) -> None:
        self._base = base
        self._process = process

    def open(self) -> Version:
        """The newest version."""
        version: Version = self._ask("open the base table", lambda: self._base.newest)
        return version

    def tags(self) -> dict[str, Version]:
        """The versions that are tagged."""
        tags: dict[str, Version] = self._ask("list tags", lambda: dict(self._base.tags))
        return tags

    def tag_newest(self, name: str) -> None:
        """Tag the version that is the newest when the request arrives."""
        self._ask("tag", lambda: self._base.tags.__setitem__(name, self._base.newest))

    def untag(self, name: str) -> None:
        """Delete a tag."""
        self._ask("delete a tag", partial(self._base.tags.pop, name, None))

    def commit(
        self,
        read: Version,
        *,
        gone: set[int] = frozenset(),  # type: ignore[assignment]
        rows: Mapping[int, int] | None = None,
        marks: Progress | None = None,
        accept: Callable[[Version], bool] | None = None,
        alone: bool = False,
    ) -> Version:
        """Delete keys, upsert rows and move the progress, made from a version.

        Parameters
        ----------
        accept : callable, optional
            Whether it may land behind a version that came since.
        alone : bool, default False
            Whether Lance compares inserted keys as well, as it does between joins.

        Raises
        ------
        ConflictError
            Nothing was committed.
        StoreUnavailableError
            Nobody knows.
        """
        rows = rows or {}
        effect = partial(self._commit, read, gone | set(rows), rows, marks or {}, accept, alone)
        version: Version = self._ask("commit", effect)
        return version

    def commit_rows(
        self, read: Version, *, gone: set[int], rows: Mapping[int, int], merged: Progress
    ) -> Version:
        """Delete keys and upsert rows of a divided merge, by compare-and-swap with a version."""
        version: Version = self._ask(
            "commit rows", partial(self._commit_rows, read, gone, rows, merged)
        )
        return version

    def append(self, read: Version, *, rows: Mapping[int, int], marks: Progress) -> None:
        """Add rows and move the progress in one commit, by compare-and-swap with a version."""
        self._ask("append rows", partial(self._append, read, rows, marks))

    def record(self, read: Version, marks: Progress) -> None:
        """Move the progress alone, by compare-and-swap with a version."""
        self._ask("record progress", partial(self._record, read, marks))

    def versions_after(self, number: int) -> list[Version]:
        """Every version that came after one."""
        later: list[Version] = self._ask(
            "look at versions", lambda: [v for v in self._base.versions if v.number > number]
        )
        return later

    def catch_up(self, read: Version, caught_up: Progress) -> None:
        """Say how far the index is, by compare-and-swap with a version."""
        self._ask("commit an index", partial(self._catch_up, read, caught_up))

    def clean_up(self, age: timedelta, tagged: Callable[[], set[int]]) -> None:
        """Delete versions of an age, except the newest and tagged ones, as Lance does."""
        self._ask("delete versions", partial(self._clean_up, age, tagged))

    def _ask(self, name: str, effect: Callable[[], object]) -> object:
        world = self._base.world
        return world.request(self._process, name, effect, StoreUnavailableError)

    def _commit(
        self,
        read: Version,
        touched: set[int],
        rows: Mapping[int, int],
        marks: Progress,
        accept: Callable[[Version], bool] | None,
        alone: bool,
    ) -> Version:
        newest = self._base.newest
        known = {key for key, _ in read.rows}
        # Lance compares the rows that both updated or deleted, and not those that both inserted.
        compared = touched if alone else touched & known
        if read.of(compared) != newest.of(compared):
            raise ConflictError("the same rows were changed")
        later = (v for v in self._base.versions if v.number > read.number)
        if accept is not None and not all(accept(version) for version in later):
            raise ConflictError("it rests on what has changed")
        kept = [row for row in newest.rows if row[0] not in touched & known]
        progress = dict(newest.merged)
        for region, number in marks.items():
            progress[region] = max(number, progress.get(region, 0))
        after = tuple(sorted([*kept, *rows.items()]))
        kind = "marked" if marks else "other"
        return self._add(after, progress, newest.caught_up, kind=kind)

    def _commit_rows(
        self, read: Version, gone: set[int], rows: Mapping[int, int], merged: Progress
    ) -> Version:
        newest = self._unchanged(read)
        kept = [row for row in newest.rows if row[0] not in gone and row[0] not in rows]
        after = tuple(sorted([*kept, *rows.items()]))
        return self._add(after, newest.merged, newest.caught_up, kind="rows", rows_of=merged)

    def _append(self, read: Version, rows: Mapping[int, int], marks: Progress) -> None:
        newest = self._unchanged(read)
        after = tuple(sorted([*newest.rows, *rows.items()]))
        self._add(after, {**newest.merged, **marks}, newest.caught_up, kind="marked")

    def _record(self, read: Version, marks: Progress) -> None:
        newest = self._unchanged(read)
        self._add(newest.rows, {**newest.merged, **marks}, newest.caught_up, kind="index")

    def _clean_up(self, age: timedelta, tagged: Callable[[], set[int]]) -> None:
        before = self._base.world.time() - age
        old = {version.number for version in self._base.versions[:-1] if version.written < before}
        self._base.gone |= old - tagged()

    def _unchanged(self, read: Version) -> Version:
        newest = self._base.newest
        if newest.number != read.number:
            raise ConflictError("another commit was faster")
        return newest

    def _catch_up(self, read: Version, caught_up: Progress) -> None:
        newest = self._unchanged(read)
        self._add(newest.rows, newest.merged, caught_up, kind="index")

    def _add(
        self,
        rows: tuple[tuple[int, int], ...],
        merged: Progress,
        caught_up: Progress,
        *,
        kind: str,
        rows_of: Progress | None = None,
    ) -> Version:
        number = self._base.newest.number + 1
        added = Version(
            number,
            self._base.world.time(),
            rows,
            dict(merged),
            dict(caught_up),
            kind,
            dict(rows_of or {}),
        )
        self._base.versions.append(added)
        return added
