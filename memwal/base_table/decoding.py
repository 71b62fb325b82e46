"""Decode stored rows where an encoding can be invalid although its write succeeded: dictionaries.

Lance numbers the values of a dictionary anew where it writes rows together. If there are more than
the type of the indices can number, it writes a file that nobody can decode. Such columns are
therefore decoded, before a commit names their file, and before the generations that the rows came
from are collected. Of other columns, the end of the file is checked: see
:mod:`memwal.base_table.named_files`.

Nothing is changed here: a process that pauses or dies has decoded in vain.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import lance

from memwal.base_table.snapshot import lance_errors
from memwal.format.lance_manifest import as_version, data_files, has_dictionary_fields
from memwal.format.wal_layout import has_dictionaries
from memwal.storage.location import TableLocation

_READ_AHEAD_BYTES: Final = 32 << 20
_MAX_KNOWN: Final = 1 << 17

# Data files that this process has decoded. Each has a random name, and never changes.
_decoded: set[str] = set()


def decode_dictionaries(
    dataset: lance.LanceDataset, uri: str, *, known: Collection[str] = frozenset()
) -> None:
    """Read the dictionaries of a data set, in files that this process has not decoded before.

    ``uri`` is its address; files with a name in ``known`` are left out. Costs the time to read
    these columns once, and nothing if there are none.

    Raises CorruptDataError if a column cannot be decoded; it names a file.
    """
    columns = [field.name for field in dataset.schema if has_dictionaries([field])]
    if not columns:
        return
    for fragment in dataset.get_fragments():
        names = [file.path for file in fragment.data_files()]
        addresses = {f"{uri} {name}" for name in names if name not in known}
        if addresses <= _decoded:
            continue
        with lance_errors(f"decoding {', '.join(columns)} in {', '.join(names)} of {uri}"):
            scanner = dataset.scanner(
                columns=columns, fragments=[fragment], io_buffer_size=_READ_AHEAD_BYTES
            )
            for _ in scanner.to_batches():
                pass
        if len(_decoded) > _MAX_KNOWN:
            forget_decoded()
        _decoded.update(addresses)


def forget_decoded() -> None:
    """Read every file again from now on."""
    _decoded.clear()


def decode_new_rows(
    location: TableLocation, manifest: bytes, *, before: bytes | None, version: int
) -> None:
    """Read the dictionaries of the rows that a manifest adds to its predecessor ``before``.

    It is not stored as ``version`` yet. Raises as :func:`decode_dictionaries`.
    """
    if before is None or not has_dictionary_fields(manifest):
        # The first version of a table has no rows.
        return
    known = frozenset(data_files(before))
    if known.issuperset(data_files(manifest)):
        return
    # Lance calls this from a thread of its own, which may not call Lance again.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_decode_new, location, manifest, version, known).result()


def _decode_new(
    location: TableLocation, manifest: bytes, version: int, known: frozenset[str]
) -> None:
    with lance_errors(f"reading what was written to {location}"):
        dataset = lance.LanceDataset(
            location.uri,
            # Lance looks for the file of the version that it opens.
            serialized_manifest=as_version(manifest, version - 1),
            **location.lance_arguments(),
        )
    decode_dictionaries(dataset, location.uri, known=known)
