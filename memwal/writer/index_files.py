"""The files of the base table's indexes, for what no call of pylance tells about them."""

from __future__ import annotations

from lance.file import LanceFileReader

from memwal.storage.location import TableLocation
from memwal.table_index.base_table import translate_lance_error


def open_index_file(
    location: TableLocation, segment: str, file: str
) -> tuple[LanceFileReader, dict[str, str]]:
    """Open a file of an index's segment.

    Parameters
    ----------
    segment : str
        UUID of the segment.

    Returns
    -------
    LanceFileReader
    dict of str to str
        The file's metadata.

    Raises
    ------
    ObjectNotFoundError
        The segment has no such file.
    StoreAccessError, StoreUnavailableError
        As for any read.
    """
    uri = location.child(f"_indices/{segment}/{file}")
    try:
        reader = LanceFileReader(uri, **location.lance_arguments())
        metadata = reader.metadata().schema.metadata or {}
    except (OSError, ValueError) as error:
        raise translate_lance_error(error, f"reading {uri}") from error
    return reader, {key.decode(): value.decode() for key, value in metadata.items()}
