"""The table of the example, and the assignment of its regions to processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

import memwal
from memwal.errors import TableSetupError
from memwal.region.router import Router

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("state", pa.string()),
        pa.field("total", pa.float64()),
    ]
)
KEYS = pa.schema([SCHEMA.field("id")])
SPEC = memwal.RegionSpec.bucket("id", 8)
ROUTER = Router(SPEC, SCHEMA)
REGION_IDS = [region.region_id for region in ROUTER.assignments() or ()]


def open_or_create(uri: str) -> memwal.Table:
    """Open the table; the first process creates it."""
    try:
        return memwal.open(uri)
    except TableSetupError:
        try:
            return memwal.create(uri, SCHEMA, primary_key=["id"], region_spec=SPEC)
        except TableSetupError:
            return memwal.open(uri)


@dataclass(frozen=True, slots=True)
class Ownership:
    """Process ``r % len(peers)`` writes region ``r``, and no other process does.

    Attributes
    ----------
    number : int
        Number of this process.
    peers : tuple of str
        Address of each process, including this one.
    """

    number: int = 0
    peers: tuple[str, ...] = ("",)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Ownership:
        """Read ``ORDERS_NUMBER`` and ``ORDERS_PEERS``; without them, this is the only process."""
        peers = tuple(environ.get("ORDERS_PEERS", "").split(","))
        return cls(int(environ.get("ORDERS_NUMBER", "0")), peers)

    @property
    def own_regions(self) -> list[UUID]:
        """Return the regions that this process writes."""
        return REGION_IDS[self.number :: len(self.peers)]

    def split(self, rows: pa.Table) -> dict[int, pa.Table]:
        """Split rows by the number of the process that writes them."""
        parts: dict[int, list[pa.RecordBatch]] = {}
        for batch in rows.to_batches():
            for region, part in ROUTER.route(batch):
                owner = REGION_IDS.index(region.region_id) % len(self.peers)
                parts.setdefault(owner, []).append(part)
        return {owner: pa.Table.from_batches(found) for owner, found in parts.items()}
