"""Place of a region: the region spec and the region values that all of its rows share.

A client may choose any region id. LanceDB derives ids from the region values, as memwal does; the
specification asks for random ones, pylance takes those of its caller, and lance-context makes its
own. The place of a region is therefore read from its manifest: spec id and region values. Lance's
writer records no values, and lance-context no spec id. Then the place is known in these cases only:

* the spec keeps all rows in one region: every region of the table has the same place;
* the id is the derived one of a place that is known in advance;
* the values of the spec are not known in advance, and the id is a name-based UUID (version 5):
  LanceDB derived it from a value, of which the region's manifest has no record.

Two regions of one place have rows of the same keys, and nothing records which row is newer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from uuid import UUID

from memwal.base_table.commit import current_spec
from memwal.base_table.region_marks import read_marks
from memwal.base_table.required_regions import check_regions
from memwal.base_table.snapshot import BaseTable
from memwal.errors import CorruptDataError, InvalidInputError, TableSetupError
from memwal.format.region_manifest import RegionManifest, RegionStatus
from memwal.region.manifest_store import discover_regions, read_manifests
from memwal.region.router import RegionValues, Router
from memwal.region.spec import RegionSpec

RegionPlace = tuple[int, RegionValues]
"""Spec id and encoded region values."""

_NAME_BASED = 5
_MAX_SETTLED = 100_000
# Of tables by address: regions of no spec in force, or sealed and merged, which never get rows.
_settled: set[tuple[str, UUID]] = set()


def spec_of(base: BaseTable, spec_id: int) -> RegionSpec | None:
    """Return a region spec of the table; None if there is none of this id or it is unusable."""
    names = {field_id: name for name, field_id in base.field_ids().items()}
    for stored in base.details.region_specs:
        if stored.spec_id == spec_id:
            try:
                spec = RegionSpec.from_stored(stored, names)
                spec.value_types(base.schema)
            except (InvalidInputError, CorruptDataError):
                # The spec of another client, or one over a column that has changed: readers go
                # on without it, and prune and route less.
                return None
            return spec
    return None


class RegionPlaces:
    """Places of the regions of one version of a table."""

    def __init__(self, base: BaseTable) -> None:
        self._base = base
        self._newest = max((spec.spec_id for spec in base.details.region_specs), default=0)
        self._routers: dict[int, Router | None] = {}

    def place(self, manifest: RegionManifest) -> RegionPlace | None:
        """Return the place of a region; None if its manifest does not tell it."""
        spec_id = manifest.spec_id or self._newest
        router = self._router(spec_id)
        if router is None:
            return None
        if router.only_region is not None:
            return spec_id, frozenset(router.only_region.field_values)
        if manifest.spec_id == 0:
            return None
        if manifest.region_fields:
            return spec_id, frozenset(manifest.region_fields)
        known = router.known_region(manifest.region_id)
        if known is not None:
            return spec_id, frozenset(known.field_values)
        if router.assignments() is None and manifest.region_id.version == _NAME_BASED:
            return spec_id, frozenset({("", manifest.region_id.bytes)})
        return None

    def _router(self, spec_id: int) -> Router | None:
        if spec_id not in self._routers:
            spec = spec_of(self._base, spec_id)
            self._routers[spec_id] = None if spec is None else Router(spec, self._base.schema)
        return self._routers[spec_id]

    def is_pending(self, manifest: RegionManifest) -> bool:
        """Return whether a region has flushed generations that the base table does not have."""
        merged = self._base.details.merged.get(manifest.region_id, 0)
        return any(flushed.generation > merged for flushed in manifest.flushed)

    def is_in_use(self, manifest: RegionManifest, spec_id: int) -> bool:
        """Return whether a region takes rows of a spec, or has some that are not merged."""
        if manifest.spec_id not in (0, spec_id):
            return False
        return manifest.status == RegionStatus.ACTIVE or self.is_pending(manifest)

    def of_several(self) -> tuple[set[RegionPlace], list[RegionManifest]]:
        """Return the places that several regions have or had, and the regions of unknown places.

        Of the newest spec. Costs as much as :func:`router_in_force`.
        """
        router = self._router(self._newest)
        if router is None:
            return set(), []
        store = self._base.location.store
        stored = discover_regions(store)
        found: dict[RegionPlace, set[UUID]] = {}
        unknown = []
        for manifest in read_manifests(store, _foreign(router, stored)).values():
            if manifest.spec_id in (0, self._newest):
                place = self.place(manifest)
                if place is None:
                    unknown.append(manifest)
                else:
                    own = {router.region_of(place[1])}.intersection(stored)
                    found.setdefault(place, own).add(manifest.region_id)
        return {place for place, regions in found.items() if len(regions) > 1}, unknown

    def foreign(self, region_ids: Iterable[UUID]) -> list[UUID]:
        """Return the regions with an id that no spec of the table derives; all without a spec.

        Other regions of the table have other keys than theirs, unless they are foreign too.
        """
        foreign = list(region_ids)
        for spec in self._base.details.region_specs:
            router = self._router(spec.spec_id)
            foreign = foreign if router is None else _foreign(router, foreign)
        return foreign

    def rivals(self, manifests: Iterable[RegionManifest]) -> list[list[RegionManifest]]:
        """Return groups of regions that may have rows of the same keys.

        A region whose place is unknown may have any key. So may the regions of several specs: a
        change of the spec by memwal merges those of the earlier specs first.
        """
        regions = list(manifests)
        if len(regions) < 2:
            return []
        by_place: dict[RegionPlace | None, list[RegionManifest]] = {}
        for manifest in regions:
            by_place.setdefault(self.place(manifest), []).append(manifest)
        specs = {place[0] for place in by_place if place is not None}
        if None in by_place or len(specs) > 1:
            return [regions]
        return [group for group in by_place.values() if len(group) > 1]


def _foreign(router: Router, stored: Iterable[UUID]) -> list[UUID]:
    """Return the regions with an id that the spec does not derive, as far as the id tells it."""
    derives_more = router.assignments() is None
    return [
        region_id
        for region_id in stored
        if router.known_region(region_id) is None
        and not (derives_more and region_id.version == _NAME_BASED)
    ]


def check_foreign_found(base: BaseTable) -> None:
    """Check that no region is missing with an id that the newest spec does not derive.

    For a writer that is about to make a region, whose rows the missing one may have. Costs two
    listings.

    Raises RegionLostError if a region is missing that must exist.
    """
    marks = read_marks(base.location.store)
    _, spec = current_spec(base)
    required = _foreign(Router(spec, base.schema), {*marks, *base.details.merged})
    missing = set(required).difference(discover_regions(base.location.store))
    check_regions(base, marks, {}, regions=missing)


def router_in_force(
    base: BaseTable,
    spec: RegionSpec | None = None,
    *,
    stored: Collection[UUID] | None = None,
    without: Collection[UUID] = (),
) -> Router:
    """Return the router of rows to the regions that exist, by the ids that these have.

    ``spec`` is the newest one of the table, and ``stored`` are all regions, by default.

    Costs one listing, and the manifest of each region with an id that the spec does not derive,
    once per process if the region is no longer in use. A region with the same place as rows gets
    these rows: it is adopted. ``without`` are regions to pass over.

    Raises
    ------
    TableSetupError
        The table has no region spec; two regions have the same place; or the place of a region is
        unknown. A writer could then write a key into a second region.
    """
    spec = spec or current_spec(base)[1]
    spec_id = spec.spec_id
    router = Router(spec, base.schema)
    store = base.location.store
    stored = set(discover_regions(store) if stored is None else stored).difference(without)
    foreign = [key for key in _foreign(router, stored) if (store.uri, key) not in _settled]
    if not foreign:
        return router
    places = RegionPlaces(base)
    found: dict[RegionPlace, list[UUID]] = {}
    for manifest in read_manifests(store, foreign).values():
        if not places.is_in_use(manifest, spec_id):
            if manifest.status == RegionStatus.SEALED or 0 < manifest.spec_id < spec_id:
                _settle(store.uri, manifest.region_id)
            continue
        place = places.place(manifest)
        if place is None:
            raise _unknown_place(base, manifest.region_id)
        if manifest.status == RegionStatus.SEALED:
            raise _sealed(base, manifest.region_id)
        found.setdefault(place, []).append(manifest.region_id)
    for place, region_ids in found.items():
        derived = router.region_of(place[1])
        if derived in stored:
            for manifest in read_manifests(store, [derived]).values():
                if places.is_in_use(manifest, spec_id):
                    region_ids.append(derived)
        if len(region_ids) > 1:
            raise _same_place(base, sorted(region_ids))
    return router.adopting({values: ids[0] for (_, values), ids in found.items()})


def _settle(uri: str, region_id: UUID) -> None:
    if len(_settled) >= _MAX_SETTLED:
        _settled.clear()
    _settled.add((uri, region_id))


def _unknown_place(base: BaseTable, region_id: UUID) -> TableSetupError:
    return TableSetupError(
        f"the manifest of region {region_id} of {base.location}, which another client or an "
        "earlier region spec made, does not say which rows belong there: a key could come into two "
        "regions. Nothing was written. Stop the clients that write to it, and retire it: memwal "
        f"retire-region {base.location} {region_id}"
    )


def _sealed(base: BaseTable, region_id: UUID) -> TableSetupError:
    return TableSetupError(
        f"region {region_id} of {base.location} is sealed and has rows that are not merged, which "
        "could be merged after newer ones. Nothing was written. Merge it first: memwal "
        f"retire-region {base.location} {region_id}"
    )


def _same_place(base: BaseTable, region_ids: Collection[UUID]) -> TableSetupError:
    return TableSetupError(
        f"regions {', '.join(map(str, region_ids))} of {base.location} are for the same rows, so "
        "that a key could come into two of them. Nothing was written. Stop the clients that write "
        "to them, and retire all but one, the one with the oldest rows first: memwal "
        f"retire-region {base.location} REGION; or name the region of a writer that keeps all rows "
        "in one, writer(region=...)"
    )
