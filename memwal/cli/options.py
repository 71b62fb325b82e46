"""Options that many commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from memwal.cli.completion import region_ids
from memwal.errors import InvalidInputError
from memwal.storage.options_file import read_options_file

if TYPE_CHECKING:
    from memwal.table import Table

Uri = Annotated[
    str,
    typer.Argument(metavar="TABLE", help="Address of the table: a path, s3://, gs:// or az://."),
]
OptionsFile = Annotated[
    Path | None,
    typer.Option(
        "--storage-options-file",
        metavar="FILE",
        help="JSON object of storage options, as Lance takes them. The place for secrets.",
    ),
]
OptionPairs = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        "-o",
        metavar="KEY=VALUE",
        help="One storage option; can be given again, and wins over the file. Other users of "
        "this machine can see command lines: keep secrets in the file.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Regions = Annotated[
    list[UUID] | None,
    typer.Option(
        "--region",
        metavar="UUID",
        help="This region only; can be given again.",
        autocompletion=region_ids,
    ),
]
RegionId = Annotated[
    UUID,
    typer.Argument(
        metavar="REGION",
        help="UUID of the region.",
        autocompletion=region_ids,
    ),
]


def storage_options(file: Path | None, pairs: Sequence[str] | None) -> dict[str, str]:
    """Storage options of a command line. No message repeats a value.

    Raises
    ------
    InvalidInputError
        The file or an option is not what it must be.
    """
    options = read_options_file(file) if file is not None else {}
    for number, pair in enumerate(pairs or (), start=1):
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InvalidInputError(f"storage option {number} (-o) is not of the form KEY=VALUE")
        options[key] = value
    return options


def open_table(uri: str, file: Path | None, pairs: Sequence[str] | None) -> Table:
    """The table that a command line names."""
    from memwal.table import open as open_memwal

    return open_memwal(uri, storage_options=storage_options(file, pairs))
