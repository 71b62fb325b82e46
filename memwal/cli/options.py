"""Options, arguments and completion that commands share: tables, stores, schemas, region specs.

A table is given by its name in the catalog or by its address.

Tab completion answers while the user waits for the next key, so it uses cheap sources: the exported
snapshot of the catalog before its database, and a listing of a folder, never a request to an object
store. A shell has no place for an error; after one, there are no completions.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer
from typer import Argument, Option

from memwal.errors import (
    InvalidInputError,
    MemWalError,
    MissingExtraError,
    ObjectNotFoundError,
    TableSetupError,
)
from memwal.format.paths import parse_region_name
from memwal.region.spec_text import parse_type
from memwal.storage.credentials import read_options_file
from memwal.util.safe_json import is_unicode, read_json

if TYPE_CHECKING:
    import pyarrow as pa

    from memwal.catalog import Catalog, ManagedTable, Policy
    from memwal.storage.location import TableLocation
    from memwal.table import Table

MIN_REGION_DIGITS: Final = 4
"""Digits of a region's id that a command takes, at least: fewer are more likely a mistake."""
_ID_DIGITS = 32
_REGION_DIGITS = re.compile(f"[0-9a-f]{{{MIN_REGION_DIGITS},{_ID_DIGITS}}}")


def table_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the name of a managed table."""
    return [name for name in _registered_uris(ctx) if name.startswith(incomplete)]


def region_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a region of the table that is named before, if the table is on this machine."""
    # While an option still lacks its value, arguments are not assigned to parameters yet.
    words = [ctx.params.get("table"), *ctx.args]
    table = next((word for word in words if isinstance(word, str)), None)
    if table is None:
        return []
    folder = Path(table)
    if not folder.is_dir():
        folder = Path(_registered_uris(ctx).get(table, table))
    try:
        names = sorted(entry.name for entry in os.scandir(folder / "_mem_wal"))
    except OSError:
        return []
    return [name for name in names if name.startswith(incomplete) and parse_region_name(name)]


def _registered_uris(ctx: typer.Context) -> dict[str, str]:
    """Return the address of each managed table by its name; nothing after an error."""
    from memwal.catalog.records import SNAPSHOT_VARIABLE, read_snapshot

    url = ctx.params.get("url")
    snapshot = os.environ.get(SNAPSHOT_VARIABLE)
    try:
        if snapshot and not url:
            return {table.name: table.uri for table in read_snapshot(snapshot)}
        with open_catalog(url) as catalog:
            return {table.name: table.uri for table in catalog.list()}
    except (MemWalError, OSError):
        return {}


CatalogUrl = Annotated[
    str | None,
    Option(
        "--catalog",
        metavar="URL",
        help="SQLAlchemy URL of the catalog; by default $MEMWAL_CATALOG_URL, else a SQLite file "
        "of the user. Other users of this machine can see command lines: keep a password in the "
        "variable.",
    ),
]
Uri = Annotated[
    str, Argument(metavar="TABLE", help="Address of the table: a path, s3://, gs:// or az://.")
]
TABLE_HELP = (
    "Name of a managed table, or an address: a path, s3://, gs:// or az://. A name that is in the "
    "catalog means that table; ./NAME is a folder."
)
NameOrUri = Annotated[str, Argument(metavar="TABLE", help=TABLE_HELP, autocompletion=table_names)]
Name = Annotated[
    str, Argument(metavar="NAME", help="Name of the managed table.", autocompletion=table_names)
]
TableFilter = Annotated[
    str | None,
    Option("--table", metavar="NAME", help="This table only.", autocompletion=table_names),
]
TableFilters = Annotated[
    list[str] | None,
    Option(
        "--table",
        metavar="NAME",
        help="This table only; can be given again.",
        autocompletion=table_names,
    ),
]
OptionsFile = Annotated[
    Path | None,
    Option(
        "--storage-options-file",
        metavar="FILE",
        help="JSON object of storage options, as Lance takes them. The place for secrets.",
    ),
]
OptionPairs = Annotated[
    list[str] | None,
    Option(
        "--storage-option",
        "-o",
        metavar="KEY=VALUE",
        help="One storage option; can be given again, and wins over the file. Other users of "
        "this machine can see command lines: keep secrets in the file.",
    ),
]
AsJson = Annotated[bool, Option("--json", help="Print the result as JSON.")]


@dataclass(frozen=True, slots=True)
class RegionName:
    """Id of a region on a command line, or the beginning of it: ``digits`` without dashes."""

    digits: str

    @classmethod
    def parse(cls, text: str) -> RegionName:
        """Parse a word of the command line."""
        digits = text.replace("-", "").lower()
        if not _REGION_DIGITS.fullmatch(digits):
            raise typer.BadParameter(
                f"{text!r} is not the id of a region, or the first {MIN_REGION_DIGITS} or more of "
                "its digits"
            )
        return cls(digits)

    def find(self, location: TableLocation) -> UUID:
        """Return the id of the table's region; InvalidInputError unless it is exactly one."""
        if len(self.digits) == _ID_DIGITS:
            return UUID(self.digits)
        from memwal.base_table.region_marks import read_marks
        from memwal.region.manifest_store import discover_regions

        # A region whose folder is lost has a mark.
        regions = {*discover_regions(location.store), *read_marks(location.store)}
        found = sorted(str(region) for region in regions if region.hex.startswith(self.digits))
        if not found:
            # Without the table, that is the error.
            open_table(location.uri, location.storage_options)
            raise InvalidInputError(
                f"{location.uri} has no region whose id begins with {self.digits}; memwal status "
                "lists its regions"
            )
        if len(found) > 1:
            raise InvalidInputError(
                f"the ids of several regions begin with {self.digits}: {', '.join(found)}; give "
                "more digits"
            )
        return UUID(found[0])


def find_regions(location: TableLocation, names: Sequence[RegionName] | None) -> list[UUID] | None:
    """Return the ids of the table's regions with these names; None if none is given."""
    return [name.find(location) for name in names] if names else None


def with_region_ids(location: TableLocation, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of parameters with the ids of the regions that they name."""

    def found(value: object) -> object:
        if isinstance(value, RegionName):
            return value.find(location)
        if isinstance(value, list | tuple):
            return type(value)(map(found, value))
        return value

    return {name: found(value) for name, value in values.items()}


RegionNames = Annotated[
    list[RegionName] | None,
    Option(
        "--region",
        metavar="REGION",
        help=f"This region only: its id, or the first {MIN_REGION_DIGITS} or more digits; can be "
        "given again.",
        parser=RegionName.parse,
        autocompletion=region_ids,
    ),
]
RegionId = Annotated[
    UUID,
    Argument(
        metavar="REGION",
        help=f"Id of the region, or its first {MIN_REGION_DIGITS} or more digits.",
        # CommandGroup finds the id, once it has the table.
        parser=RegionName.parse,
        autocompletion=region_ids,
    ),
]


def storage_options(file: Path | None, pairs: Sequence[str] | None) -> dict[str, str]:
    """Read the storage options of a command line. No error message repeats a value."""
    options = read_options_file(file) if file is not None else {}
    for number, pair in enumerate(pairs or (), start=1):
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InvalidInputError(f"storage option {number} (-o) is not of the form KEY=VALUE")
        options[key] = value
    return options


@contextlib.contextmanager
def open_catalog(url: str | None) -> Iterator[Catalog]:
    """Open a catalog, and close it at the end of the block."""
    from memwal.catalog import Catalog

    catalog = Catalog(url)
    try:
        yield catalog
    finally:
        catalog.close()


def open_table(uri: str, storage: Mapping[str, str]) -> Table:
    """Open a table by its address."""
    from memwal.table import open as open_memwal

    return open_memwal(uri, storage_options=storage)


@contextmanager
def managed_table(
    name_or_uri: str, url: str | None
) -> Iterator[tuple[Catalog | None, ManagedTable | None]]:
    """Find a table in the catalog by its name; yield None and None for an address.

    A name that is neither in the catalog nor that of a file or folder raises TableSetupError.
    """
    from memwal.catalog.records import NAME

    if not NAME.fullmatch(name_or_uri):
        if url is not None:
            # An address needs no catalog, but one that cannot be is a mistake.
            with open_catalog(url):
                pass
        yield None, None
        return
    with ExitStack() as stack:
        try:
            catalog = stack.enter_context(open_catalog(url))
            managed = catalog.get(name_or_uri)
        except (ObjectNotFoundError, TableSetupError) as error:
            # No such name, or no catalog at all: then it is a folder.
            if not os.path.lexists(name_or_uri):
                raise TableSetupError(
                    f"there is no folder {name_or_uri}, and no managed table of this name: {error} "
                    "The command memwal catalog list shows the managed tables."
                ) from error
            yield None, None
            return
        except MissingExtraError:
            if url or os.environ.get("MEMWAL_CATALOG_URL"):
                raise
            # Without the extra catalog it can only be a folder.
            yield None, None
            return
        yield catalog, managed


def locate_named(
    name_or_uri: str, url: str | None, storage: Mapping[str, str]
) -> tuple[TableLocation, Policy | None]:
    """Return the location of a table, which is not opened, and its policy if it has one.

    It has one when the catalog has its name. Storage options of the command line replace the
    options that the catalog refers to.
    """
    from memwal.storage.location import TableLocation

    with managed_table(name_or_uri, url) as (_, managed):
        if managed is None:
            return TableLocation(name_or_uri, storage), None
        from memwal.fleet.tables import managed_location

        return managed_location(managed, storage_options=storage or None), managed.policy


def open_named(
    name_or_uri: str, url: str | None, storage: Mapping[str, str]
) -> tuple[Table, Policy | None]:
    """Open a table that :func:`locate_named` finds, and return it with its policy."""
    location, policy = locate_named(name_or_uri, url, storage)
    return open_table(location.uri, location.storage_options), policy


def schema_from(file: Path | None, columns: Sequence[str] | None) -> pa.Schema:
    """Read a schema from a file, or from columns of the form ``name:type``."""
    import pyarrow as pa

    if (file is None) == (not columns):
        raise InvalidInputError("give the columns either as --schema FILE or as --column NAME:TYPE")
    if file is not None:
        return _read_schema(file)
    fields: list[pa.Field] = []
    for column in columns or ():
        name, separator, text = column.rpartition(":")
        if not separator or not name or not is_unicode(name):
            raise InvalidInputError(f"column {column!r} is not of the form NAME:TYPE")
        if any(field.name == name for field in fields):
            raise InvalidInputError(f"column {name} is given twice")
        fields.append(pa.field(name, parse_type(text.strip())))
    return pa.schema(fields)


def _read_schema(file: Path) -> pa.Schema:
    import pyarrow as pa

    readers = {
        ".parquet": _parquet_schema,
        ".json": _json_schema,
        **dict.fromkeys((".arrow", ".feather", ".ipc", ".arrows"), _arrow_schema),
    }
    read = readers.get(file.suffix.lower())
    if read is None:
        raise InvalidInputError(f"cannot tell what {file} is: name it {', '.join(sorted(readers))}")
    try:
        return read(file)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InvalidInputError(f"cannot read a schema from {file}: {error}") from error


def _parquet_schema(file: Path) -> pa.Schema:
    import pyarrow.parquet as pq

    return pq.read_schema(file).remove_metadata()


def _arrow_schema(file: Path) -> pa.Schema:
    import pyarrow as pa

    with pa.memory_map(str(file)) as source:
        try:
            return pa.ipc.open_file(source).schema.remove_metadata()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).schema.remove_metadata()


def _json_schema(file: Path) -> pa.Schema:
    from lance.schema import json_to_schema

    description = read_json(file.read_text(encoding="utf-8"))
    try:
        return json_to_schema(description)
    except BaseException as error:
        # Lance does not validate its input; a panic of Lance is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"it does not describe a schema as Lance does ({error})") from error
