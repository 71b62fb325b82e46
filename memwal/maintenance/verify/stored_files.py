"""Files that a version of a Lance data set names: there, and as long as they must be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memwal.format.names import MEM_WAL_INDEX_NAME
from memwal.format.table_manifest import read_index_section
from memwal.storage.location import TableLocation

if TYPE_CHECKING:
    import lance


def wrong_files(
    location: TableLocation, folder: str, dataset: lance.LanceDataset, manifest: bytes
) -> Iterator[tuple[str, str | None]]:
    """Files of a data set that are missing or of a wrong size.

    Three listings, whatever the number of files.

    Parameters
    ----------
    folder : str
        Of the data set, below the table; empty for the table.
    manifest : bytes
        The data set's manifest file.

    Yields
    ------
    (str, str or None)
        Key of the file; None when it is missing, else what is wrong.
    """
    prefix = f"{folder}/" if folder else ""
    store = location.store
    sizes = {
        info.key: info.size
        for part in ("data", "_deletions")
        for info in store.list(f"{prefix}{part}")
    }
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        for file in metadata.files:
            if file.base_id is not None:
                # Of a shallow clone: it lies elsewhere.
                continue
            key = f"{prefix}data/{file.path}"
            if key not in sizes:
                yield key, None
            elif file.file_size_bytes and sizes[key] != file.file_size_bytes:
                yield key, f"it has {sizes[key]} bytes instead of {file.file_size_bytes}"
            elif not sizes[key]:
                yield key, "it is empty"
        deletions = metadata.deletion_file
        if deletions is not None and deletions.base_id is None:
            key = f"{prefix}{deletions.path(metadata.id)}"
            if key not in sizes:
                yield key, None
            elif not sizes[key]:
                yield key, "it is empty"
    segments = {
        info.key.removeprefix(f"{prefix}_indices/").partition("/")[0]
        for info in store.list(f"{prefix}_indices")
    }
    for entry in read_index_section(manifest, name=f"{prefix}_versions"):
        if entry.name != MEM_WAL_INDEX_NAME and str(entry.uuid) not in segments:
            yield f"{prefix}_indices/{entry.uuid}", None
