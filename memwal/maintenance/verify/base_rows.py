"""Keys that stand in the base table more than once, found in bounded memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.maintenance.verify.findings import Finding
from memwal.memtable.key_hash import hash_rows
from memwal.region.newest import key_column
from memwal.table_index.base_table import BaseTable

DEFAULT_BYTES: Final = 256 << 20
"""How much memory the hashes of one part may take."""

_HASHED: Final = np.dtype([("hash", "<u8"), ("row", "<u8")])
# Of the file as it is read, and of its hashes as they are sorted and compared.
_COPIES: Final = 3
_MAX_PARTS: Final = 256
_SHOWN: Final = 3


def check_repeated_keys(base: BaseTable, *, max_bytes: int = DEFAULT_BYTES) -> Iterator[Finding]:
    """Look for keys that have several rows.

    One pass over the key columns writes the hash of each key to one of several temporary files by
    its value; each file is then sorted on its own, and keys of equal hashes are compared.

    Parameters
    ----------
    max_bytes : int, default 256 MiB
        Bounds the memory, up to a table of some billion rows.
    """
    rows = base.dataset.count_rows()
    needed = rows * _HASHED.itemsize * _COPIES
    parts = min(_MAX_PARTS, max(1, -(-needed // max_bytes)))
    surplus, keys, shown = 0, 0, list[Any]()
    with tempfile.TemporaryDirectory(prefix="memwal-verify-") as folder:
        files = [Path(folder, str(part)) for part in range(parts)]
        _spread(_hashed(base), files)
        for file in files:
            too_many, several, some = _repeated(base, np.fromfile(file, _HASHED))
            surplus, keys = surplus + too_many, keys + several
            shown += some
            file.unlink()
    if surplus:
        examples = ", ".join(map(str, shown[:_SHOWN]))
        yield Finding.of(
            "base-key-repeated",
            "base table",
            f"keys with several rows: {keys}; rows too many: {surplus}; such as {examples}",
        )


def _hashed(base: BaseTable) -> Iterator[npt.NDArray[Any]]:
    scanner = base.dataset.scanner(columns=list(base.primary_key), with_row_id=True)
    for batch in scanner.to_batches():
        if not batch.num_rows:
            continue
        found = np.empty(batch.num_rows, _HASHED)
        found["hash"] = hash_rows([batch.column(name) for name in base.primary_key])
        found["row"] = batch.column("_rowid").to_numpy()
        yield found


def _spread(batches: Iterable[npt.NDArray[Any]], files: list[Path]) -> None:
    with ExitStack() as stack:
        opened = [stack.enter_context(file.open("wb")) for file in files]
        for batch in batches:
            if len(files) == 1:
                batch.tofile(opened[0])
                continue
            part = batch["hash"] % np.uint64(len(files))
            order = np.argsort(part, kind="stable")
            ends = np.cumsum(np.bincount(part.astype(np.int64), minlength=len(files)))
            for file, piece in zip(opened, np.split(batch[order], ends[:-1]), strict=True):
                piece.tofile(file)


def _repeated(base: BaseTable, hashed: npt.NDArray[Any]) -> tuple[int, int, list[Any]]:
    """How many rows are too many in one part, for how many keys, and some of these."""
    ordered = np.sort(hashed["hash"])
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return 0, 0, []
    wanted = np.sort(hashed["row"][np.isin(hashed["hash"], twice)])
    rows = base.dataset._take_rows(wanted.tolist(), columns=list(base.primary_key))
    encoded = key_column(rows, base.primary_key).dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    counts = np.bincount(codes)
    several = np.flatnonzero(counts > 1)
    if not len(several):
        # Different keys with one hash.
        return 0, 0, []
    _, first = np.unique(codes, return_index=True)
    examples = rows.take(pa.array(first[several[:_SHOWN]])).to_pylist()
    surplus = int((counts[several] - 1).sum())
    return surplus, len(several), [tuple(key.values()) for key in examples]
