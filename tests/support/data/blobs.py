"""Blob columns of both kinds, with values of every size."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import lance
import pyarrow as pa

Value: TypeAlias = "bytes | lance.Blob | None"

MARKED: Final = "lance-encoding:blob"
V2: Final = "lance.blob.v2"
VERSIONS: Final = {MARKED: "2.1", V2: "2.2"}
"""Oldest file version that has each kind."""

# In a data file, null, empty, in a file with others, and in a file of its own: the limits of
# ``field`` are lower than Lance's own.
VALUES: Final[tuple[bytes | None, ...]] = (b"x" * 10, None, b"", b"p" * 3_000, b"d" * 40_000)


def schema(kind: str, *, key: bool = True) -> pa.Schema:
    """Return the columns ``id``, ``image`` and ``n``."""
    declared = {b"lance-schema:unenforced-primary-key": b"true"} if key else None
    if kind == MARKED:
        image = pa.field("image", pa.large_binary(), metadata={MARKED: "true"})
    else:
        image = lance.blob_field(
            "image", inline_size_threshold=1_000, dedicated_size_threshold=8_000
        )
    number = pa.field("id", pa.int64(), nullable=False, metadata=declared)
    return pa.schema([number, image, pa.field("n", pa.int64())])


def rows(kind: str, ids: Iterable[int], values: Sequence[Value], *, key: bool = True) -> pa.Table:
    """Return rows whose ``n`` is their ``id``."""
    numbers = pa.array(ids, pa.int64())
    images = pa.array(values, pa.large_binary()) if kind == MARKED else lance.blob_array([*values])
    return pa.Table.from_arrays([numbers, images, numbers], schema=schema(kind, key=key))


def read(files: Iterable[lance.BlobFile | None]) -> list[bytes | None]:
    """Return the bytes of blobs."""
    return [None if file is None else file.readall() for file in files]


def stored(uri: str | Path, column: str = "image") -> dict[int, bytes | None]:
    """Return the blobs of a Lance table by ``id``, as Lance reads them."""
    dataset = lance.dataset(str(uri))
    ids = dataset.to_table(columns=["id"], with_row_address=True)
    addresses = ids.column("_rowaddr").to_pylist()
    found = read(dataset.take_blobs(column, addresses=addresses)) if addresses else []
    return dict(zip(ids.column("id").to_pylist(), found, strict=True))


def bytes_read() -> int:
    """Return how many bytes this process has read from files."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])
