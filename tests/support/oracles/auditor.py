"""Somebody who knows every acknowledged write of a table, and asks every reader about them.

What the auditor is told of has happened: writes that were acknowledged, direct writes to the base
table that returned, tags that were made. Whatever a job does, whole or in part, must change nothing
of what is shown.
"""

import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import lance
import lancedb
from support.data.tables import base_state, folder, keys, listing, region_folders, state
from support.oracles import native
from support.oracles.truth import Truth

import memwal
from memwal.base_table.snapshot import BaseTable, open_base
from memwal.format.paths import generation_dir
from memwal.lsm.indexes.catchup import index_names, maintained_index_names
from memwal.region.manifest_store import read_manifests

Values = dict[int, int | None]

LONG = timedelta(days=3650)
HAS_VERIFY = importlib.util.find_spec("memwal.jobs.verify") is not None
"""Whether the library can check a table itself; its opinion is then asked for as well."""


@dataclass
class Tag:
    """A tag, and what must stay as it was then."""

    version: int
    rows: Values
    needed: dict[str, dict[str, tuple[int, int]]]


@dataclass
class Auditor:
    """What a table must show.

    Attributes
    ----------
    truth : Truth
        All writes. Those in the log of a writer that died are in doubt for readers of what is
        flushed, until the next claim replayed them.
    logged : set of int
        Keys that came through the log, not by direct writes to the base table.
    tags : dict
        By name.
    seen : int
        Last version of the base table that was looked at.
    progress : dict
        Merge progress at that version.
    snapshot : float
        When the last snapshot was begun.
    named : dict
        Generations that were seen in the manifest of a region.
    settled : dict
        Newest generation of a region that was ever merged and covered by all maintained indexes.
    """

    truth: Truth[int] = field(default_factory=Truth)
    logged: set[int] = field(default_factory=set)
    tags: dict[str, Tag] = field(default_factory=dict)
    seen: int = 0
    progress: dict[UUID, int] = field(default_factory=dict)
    snapshot: float = 0
    named: dict[UUID, set[int]] = field(default_factory=dict)
    settled: dict[UUID, int] = field(default_factory=dict)

    # What happened

    def wrote(
        self, values: Mapping[int, int | None], gone: Iterable[int] = (), *, logged: bool = True
    ) -> None:
        """An upsert, and then a delete, were acknowledged."""
        for change in (values, dict.fromkeys(gone)):
            self.truth.acknowledge(self.truth.begin(change))
        if logged:
            self.logged |= values.keys()

    def logged_only(self, values: Mapping[int, int | None]) -> None:
        """An upsert was acknowledged by a writer that died before it flushed."""
        self.truth.begin(values)

    def replayed(self) -> None:
        """Every region has been claimed since then."""
        self.logged |= {write.key for write in self.truth.writes if not write.sure}
        self.truth.acknowledge()

    def tagged(self, table: memwal.Table, name: str) -> None:
        """The newest version got a tag."""
        version = int(table.base().dataset.tags.list()[name]["version"])
        base = open_base(table.location, version=version)
        needed = {}
        for region_id, manifest in read_manifests(table.location.store).items():
            for flushed in manifest.flushed:
                if flushed.generation > base.details.merged.get(region_id, 0):
                    path = generation_dir(region_id, flushed.path)
                    needed[path] = listing(folder(table) / path)
        self.tags[name] = Tag(version, state(base.dataset.to_table()), needed)

    def snapshot_begins(self) -> None:
        """What a snapshot shows from now on is not older than this moment."""
        self.snapshot = self.truth.now

    # What must be so

    def look(self, table: memwal.Table, *, verified: bool = False) -> None:
        """Ask every reader, and look at every version since the last look.

        Parameters
        ----------
        verified : bool
            Whether the library's own check of the table is asked as well, where it exists.
        """
        self.look_at_versions(table)
        self.look_at_tags(table)
        self.look_at_generations(table)
        self.truth.check(state(table), "our reader")
        self.truth.check(state(native.scan(table)), "Lance's reader")
        self.truth.check(_lancedb(table), "LanceDB")
        stale = state(table.at_most(LONG))
        self.truth.check(stale, "a stale read", lambda write: write.end <= self.snapshot)
        known = sorted({write.key for write in self.truth.writes})
        self.truth.check(state(table.lookup(keys(*known)).to_table()), "a lookup")
        if verified:
            look_verified(table)

    def look_at_base(self, table: memwal.Table) -> None:
        """After a checkpoint the base table alone must show everything."""
        self.truth.check(base_state(table), "the base table")
        base = table.base()
        for region_id, manifest in read_manifests(table.location.store).items():
            newest = max((f.generation for f in manifest.flushed), default=0)
            assert base.details.merged.get(region_id, 0) >= newest, f"region {region_id} is behind"

    def look_at_versions(self, table: memwal.Table) -> None:
        """Progress never falls back, no key is there twice, and no index covers too much."""
        newest = table.base().version
        for version in range(self.seen + 1, newest + 1):
            base = open_base(table.location, version=version)
            ids = base.dataset.to_table(columns=["id"]).column("id").to_pylist()
            assert len(set(ids)) == len(ids), f"version {version} has keys twice: {sorted(ids)}"
            if base.index is None:
                continue
            for region_id, generation in self.progress.items():
                now = base.details.merged.get(region_id, 0)
                assert now >= generation, (
                    f"version {version} takes back the progress of region {region_id} "
                    f"from {generation} to {now}"
                )
            self.progress = dict(base.details.merged)
            self._look_at_catchup(base)
        self.seen = newest

    def look_at_tags(self, table: memwal.Table) -> None:
        """Tags still have their rows, and the generations that were not merged when they came."""
        for name, tag in self.tags.items():
            assert state(table.at(name).scan().to_table()) == tag.rows, f"tag {name} changed"
            for path, files in tag.needed.items():
                now = listing(folder(table) / path)
                assert now == files, f"{path}, which tag {name} needs, lost {set(files) - set(now)}"

    def look_at_generations(self, table: memwal.Table) -> None:
        """A manifest stops naming only what was merged and is in every maintained index."""
        for region_id, manifest in read_manifests(table.location.store).items():
            here = {flushed.generation for flushed in manifest.flushed}
            gone = self.named.setdefault(region_id, set()) - here
            self.named[region_id] = here
            early = {number for number in gone if number > self.settled.get(region_id, 0)}
            assert not early, f"generations {sorted(early)} of region {region_id} went too early"

    def _look_at_catchup(self, base: BaseTable) -> None:
        existing = index_names(base)
        names = maintained_index_names(base)
        for region_id, merged in base.details.merged.items():
            covers = (base.details.catchup.get(name, {}).get(region_id, 0) for name in names)
            least = min((merged, *covers))
            self.settled[region_id] = max(least, self.settled.get(region_id, 0))
        for name in names:
            covered = base.details.catchup.get(name, {})
            for region_id, generation in covered.items():
                merged = base.details.merged.get(region_id, 0)
                assert generation <= merged, (
                    f"version {base.version}: index {name} is said to cover generation "
                    f"{generation} of region {region_id}, of which {merged} are merged"
                )
            whole = base.details.merged.items() <= covered.items()
            if not (base.details.merged and whole and name in existing):
                continue
            missing = _rows_outside(base, name) & self.logged
            assert not missing, (
                f"version {base.version}: index {name} is said to cover everything merged, and "
                f"does not have the rows of {sorted(missing)}"
            )


def look_verified(table: memwal.Table) -> None:
    """Have the library check the table itself, where it can."""
    if not HAS_VERIFY:
        return
    verify = importlib.import_module("memwal.jobs.verify").verify
    report = verify(table.location)
    found = "\n".join(f"  {f.code} {f.object}: {f.text}" for f in report.findings)
    assert report.clean, f"verify found\n{found}"


def _lancedb(table: memwal.Table) -> Values:
    """What LanceDB shows that opens the table now."""
    path = Path(table.uri)
    opened = lancedb.connect(str(path.parent)).open_table(re.sub(r"\.lance$", "", path.name))
    return state(opened.search().limit(100_000).to_arrow())


def _rows_outside(base: BaseTable, name: str) -> set[int]:
    """Keys of rows in fragments that an index does not cover."""
    covered: set[int] = set()
    for index in base.dataset.describe_indices():
        if index.name == name:
            covered |= {fragment for part in index.segments for fragment in part.fragment_ids}
    outside: set[int] = set()
    for fragment in base.dataset.get_fragments():
        if fragment.fragment_id not in covered:
            outside |= set(fragment.to_table(columns=["id"]).column("id").to_pylist())
    return outside


def has_folders(table: memwal.Table) -> bool:
    """Whether any generation is still stored."""
    return any(region_folders(table, region_id) for region_id in table.region_ids())


def tag(table: memwal.Table, auditor: Auditor, name: str) -> None:
    """Tag the newest version."""
    dataset = lance.dataset(table.uri)
    dataset.tags.create(name, dataset.version)
    auditor.tagged(table, name)
