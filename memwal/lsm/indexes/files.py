"""Files of the base table's indexes, read for what pylance does not return."""

from __future__ import annotations

from lance.file import LanceFileReader

from memwal.base_table.snapshot import lance_errors
from memwal.errors import CorruptDataError
from memwal.storage.location import TableLocation


def open_index_file(
    location: TableLocation, segment: str, file: str
) -> tuple[LanceFileReader, dict[str, str]]:
    """Open a file of an index segment, which is named by its UUID, and return the file's metadata.

    Raises ObjectNotFoundError if the segment has no such file, and CorruptDataError if the file or
    its metadata cannot be read.
    """
    uri = location.child(f"_indices/{segment}/{file}")
    with lance_errors(f"reading {uri}"):
        reader = LanceFileReader(uri, **location.lance_arguments())
        metadata = reader.metadata().schema.metadata or {}
    try:
        return reader, {key.decode(): value.decode() for key, value in metadata.items()}
    except UnicodeDecodeError as error:
        raise CorruptDataError(
            f"the metadata of {uri} is not text; build the index again"
        ) from error
