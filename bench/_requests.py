"""Requests to an object store, counted on their way."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import _tables as tables
from _measure import Line, Target, constant

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.stores.s3_emulator import running_emulator
from support.stores.store_gateway import gateway_before as gateway_before

_WARM_UP = 5


def requests(folder: Path, rows: int) -> Iterator[Line]:
    """Requests per upsert while one producer writes steadily; the target is one PUT."""
    count = max(rows // 500, 20)
    batches = [tables.narrow_rows(10, number * 10) for number in range(_WARM_UP + count)]
    with running_emulator(folder) as emulator, gateway_before(emulator.endpoint) as proxy:
        options = {**emulator.storage_options, "aws_endpoint": proxy.endpoint}
        uri = f"s3://{emulator.create_bucket()}/table"
        with tables.open_ours(tables.create_narrow(uri, storage_options=options)) as writer:
            for batch in batches[:_WARM_UP]:
                writer.upsert(batch)
            proxy.taken()
            for batch in batches[_WARM_UP:]:
                writer.upsert(batch)
            seen = Counter(proxy.methods())
    names = ", ".join(f"{number} {name}" for name, number in sorted(seen.items()))
    yield Line(
        name="requests",
        what="requests to S3 for each flush of the log",
        ours=constant(sum(seen.values()) / count),
        other=constant(1.0),
        unit="requests",
        against="one PUT" if set(seen) == {"PUT"} else "one PUT, but others were seen",
        target=Target(1.0),
        note=f"{names} for {count} flushes",
    )
