"""The table of the example, and which process writes which of its regions."""

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
    """The table; whichever process comes first makes it."""
    try:
        return memwal.open(uri)
    except TableSetupError:
        try:
            return memwal.create(uri, SCHEMA, primary_key=["id"], region_spec=SPEC)
        except TableSetupError:
            return memwal.open(uri)


@dataclass(frozen=True, slots=True)
class Ownership:
    """Region ``r`` is written by process ``r % len(peers)``, and by no other.

    Attributes
    ----------
    number : int
        Of this process.
    peers : tuple of str
        Where each process answers, this one included.
    """

    number: int = 0
    peers: tuple[str, ...] = ("",)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Ownership:
        """As ``ORDERS_NUMBER`` and ``ORDERS_PEERS`` tell; without them, the only process."""
        peers = tuple(environ.get("ORDERS_PEERS", "").split(","))
        return cls(int(environ.get("ORDERS_NUMBER", "0")), peers)

    @property
    def own_regions(self) -> list[UUID]:
        """Regions that this process writes."""
        return REGION_IDS[self.number :: len(self.peers)]

    def split(self, rows: pa.Table) -> dict[int, pa.Table]:
        """Rows by the number of the process that writes them."""
        parts: dict[int, list[pa.RecordBatch]] = {}
        for batch in rows.to_batches():
            for region, part in ROUTER.route(batch):
                owner = REGION_IDS.index(region.region_id) % len(self.peers)
                parts.setdefault(owner, []).append(part)
        return {owner: pa.Table.from_batches(found) for owner, found in parts.items()}
