"""Bytes that a merge of new blobs writes, beside the bytes of the blobs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
from common.measure import Figure, Line, Rival, Target

import memwal

_BLOB_BYTES = 1 << 20
_MOST = 10_000
_BATCH = 16


def blob_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Merge blobs of 1 MiB: 200 with 2,000,000 rows, and 10,000 with 100,000,000 or more."""
    count = min(max(rows // _MOST, _BATCH), _MOST)
    marked = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    for kind, field, version in (
        ("lance-encoding:blob", marked, "2.1"),
        ("lance.blob.v2", lance.blob_field("image"), "2.2"),
    ):
        place = folder / kind.replace(":", "-")
        table = memwal.create(
            place,
            pa.schema([pa.field("id", pa.int64(), nullable=False), field]),
            primary_key=["id"],
            data_storage_version=version,
        )
        numbers = np.random.default_rng(5)
        with table.writer() as writer:
            for first in range(0, count, _BATCH):
                ids = range(first, min(first + _BATCH, count))
                writer.upsert({"id": [*ids], "image": [numbers.bytes(_BLOB_BYTES) for _ in ids]})
        before = _bytes_written()
        table.merge()
        written = _bytes_written() - before
        shutil.rmtree(place)  # log, generations and base hold each blob: 30 GiB with 10,000
        yield Line(
            name="blobs",
            what=f"bytes written by a merge of {count:,} blobs of 1 MiB, {kind}",
            ours=Figure.of([written / _BLOB_BYTES]),
            other=Figure.of([count]),
            unit="MiB",
            against="the bytes of the blobs",
            rival=Rival.LIMIT,
            target=Target(1.1),
            note="by the kernel's count of what the process wrote; all keys are new",
        )


def _bytes_written() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])
