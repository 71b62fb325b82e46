"""Which region a key belongs to, as far as the key tells."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.format.region_manifest import RegionManifest
from memwal.reader.needed_regions import is_told_by_key
from memwal.reader.region_specs import spec_of
from memwal.reader.sources import ReadSources
from memwal.region.routing import Router
from memwal.region.spec import RegionSpec
from memwal.table_index.base_table import BaseTable

_NUMBER = "key"

Positions = npt.NDArray[np.int64]


def regions_of_keys(sources: ReadSources, keys: pa.Table) -> dict[UUID, Positions]:
    """Positions of the keys that can be in each region; a region that is absent may have any.

    A region is known by its values and not by its id, which another client may have chosen.
    """
    found: dict[UUID, Positions] = {}
    by_spec: dict[int, list[RegionManifest]] = {}
    for manifest in sources.manifests.values():
        by_spec.setdefault(manifest.spec_id, []).append(manifest)
    for spec_id, manifests in by_spec.items():
        spec = spec_of(sources.base, spec_id)
        if spec is None or not is_told_by_key(spec, sources.base):
            continue
        places = _by_values(spec, sources.base, keys)
        names = {field.field_id for field in spec.fields}
        for manifest in manifests:
            values = frozenset(manifest.region_fields)
            if {name for name, _ in values} != names:
                # A null, or a region that another client made without values.
                continue
            found[manifest.region_id] = places.get(values, np.empty(0, np.int64))
    return found


def _by_values(
    spec: RegionSpec, base: BaseTable, keys: pa.Table
) -> dict[frozenset[tuple[str, bytes]], Positions]:
    numbered = keys.append_column(_NUMBER, pa.array(np.arange(keys.num_rows)))
    return {
        frozenset(assignment.field_values): rows.column(rows.num_columns - 1).to_numpy()
        for assignment, rows in Router(spec, base.schema).route(numbered)
    }
