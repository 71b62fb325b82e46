"""Claims that no region has, for tests of a log alone."""

import math
from uuid import UUID

import numpy as np

from memwal.format.region_manifest import RegionManifest
from memwal.lsm.wal.claim import Claim
from memwal.lsm.wal.log import LogSurvey


def claim_at(
    region_id: UUID, *, epoch: int, next_position: int = 1, verified_at: float = -math.inf
) -> Claim:
    """Make a claim of an epoch, by the writer ``me``, over an empty log."""
    entries = np.empty(0, dtype=[("position", np.uint64), ("size", np.uint64)])
    manifest = RegionManifest(
        region_id=region_id, version=1, writer_epoch=epoch, spec_id=0, current_generation=1
    )
    survey = LogSurvey(after=0, entries=entries, tip=next_position, missing=None)
    return Claim(manifest, "me", next_position, survey, verified_at)
