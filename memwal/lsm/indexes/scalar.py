"""Parameters of scalar and text indexes, read from an index of the base table.

Parameters that pylance's statistics and descriptions leave out are in the metadata of the index's
files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memwal.errors import CorruptDataError
from memwal.lsm.indexes.files import open_index_file
from memwal.storage.location import TableLocation
from memwal.util.safe_json import read_json

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription


def no_parameters(
    location: TableLocation, description: IndexDescription, segment: str
) -> dict[str, Any]:
    """Return no parameters, for a kind that has none."""
    return {}


def read_detail_parameters(
    location: TableLocation, description: IndexDescription, segment: str, *, names: Sequence[str]
) -> dict[str, Any]:
    """Return the parameters of these names from the details that pylance describes."""
    return {name: description.details[name] for name in names}


def read_file_parameters(
    location: TableLocation,
    description: IndexDescription,
    segment: str,
    *,
    file: str,
    names: Mapping[str, str],
) -> dict[str, Any]:
    """Read the parameters from the metadata of a file of the segment.

    ``names`` has the name for the plugin by the name in the metadata. A parameter that is not in
    the metadata is left out.
    """
    _, metadata = open_index_file(location, segment, file)
    try:
        return {
            parameter: read_json(metadata[key])
            for key, parameter in names.items()
            if key in metadata
        }
    except ValueError as error:
        raise CorruptDataError(
            f"segment {segment} does not describe its parameters: {error}; build the index again"
        ) from error


def read_text_parameters(
    location: TableLocation, description: IndexDescription, segment: str
) -> dict[str, Any]:
    """Read the tokenizer and the format of a text index."""
    _, metadata = open_index_file(location, segment, "metadata.lance")
    try:
        parameters: dict[str, Any] = read_json(metadata["params"])
        parameters["format_version"] = int(metadata["format_version"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(
            f"segment {segment} of index {description.name} has no {error}; build it again"
        ) from error
    # Lance takes this one from the type of the column.
    parameters.pop("lance_tokenizer", None)
    parameters["document_granularity"] = description.details["document_granularity"]
    return parameters
