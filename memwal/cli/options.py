"""Shared options, arguments and completion: tables, storage options, schemas, region specs.

A table is given by its name in the catalog or by its address.

Tab completion answers while the user waits for the next key, so it uses cheap sources: the exported
snapshot of the catalog before its database, and a listing of a folder, never a request to an object
store. A shell has no place for an error; after one, nothing is offered.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from memwal.errors import (
    InvalidInputError,
    MemWalError,
    MissingExtraError,
    ObjectNotFoundError,
    TableSetupError,
)
from memwal.storage.credentials import read_options_file
from memwal.util.safe_json import is_unicode, read_json

if TYPE_CHECKING:
    import pyarrow as pa

    from memwal.catalog import Catalog, ManagedTable, Policy
    from memwal.region.spec import RegionSpec
    from memwal.table import Table

CatalogUrl = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        metavar="URL",
        help="SQLAlchemy URL of the catalog; by default $MEMWAL_CATALOG_URL, else a SQLite file "
        "of the user. Other users of this machine can see command lines: keep a password in the "
        "variable.",
    ),
]


def table_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of managed tables that begin so."""
    return [name for name in _tables(ctx) if name.startswith(incomplete)]


def region_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """Regions that begin so, of the table that is named before, if it is on this machine."""
    # While an option still waits for its value, arguments are not told apart yet.
    named = [ctx.params.get("table"), ctx.params.get("named"), *ctx.args]
    wanted = next((name for name in named if isinstance(name, str)), None)
    if wanted is None:
        return []
    folder = Path(wanted)
    if not folder.is_dir():
        folder = Path(_tables(ctx).get(wanted, wanted))
    try:
        names = sorted(entry.name for entry in os.scandir(folder / "_mem_wal"))
    except OSError:
        return []
    return [name for name in names if name.startswith(incomplete) and _is_uuid(name)]


def _tables(ctx: typer.Context) -> dict[str, str]:
    """Address of each managed table by its name."""
    from memwal.catalog.export import PATH_VARIABLE, read_snapshot

    url = ctx.params.get("url")
    snapshot = os.environ.get(PATH_VARIABLE)
    try:
        if snapshot and not url:
            return {table.name: table.uri for table in read_snapshot(snapshot)}

        with open_catalog(url) as catalog:
            return {table.name: table.uri for table in catalog.list()}
    except (MemWalError, OSError):
        return {}


def _is_uuid(name: str) -> bool:
    try:
        UUID(name)
    except ValueError:
        return False
    return True


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


NameOrUri = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="Name of a managed table, or an address: a path, s3://, gs:// or az://.",
        autocompletion=table_names,
    ),
]


@contextmanager
def managed_table(
    wanted: str, url: str | None
) -> Iterator[tuple[Catalog | None, ManagedTable | None]]:
    """Find a table in the catalog by its name; nothing when it is an address."""
    from memwal.catalog.records import NAME

    if not NAME.fullmatch(wanted):
        yield None, None
        return
    with ExitStack() as stack:
        try:
            catalog = stack.enter_context(open_catalog(url))
            found = catalog.get(wanted)
        except (ObjectNotFoundError, TableSetupError):
            # No such name, or no catalog at all: then it is a folder.
            yield None, None
            return
        except MissingExtraError:
            if url or os.environ.get("MEMWAL_CATALOG_URL"):
                raise
            # Without memwal[catalog], a folder is all that it can be.
            yield None, None
            return
        yield catalog, found


def open_named(
    wanted: str, url: str | None, file: Path | None, pairs: Sequence[str] | None
) -> tuple[Table, Policy | None]:
    """Open a table, with its policy when the catalog knows its name.

    Storage options of the command line replace those that the catalog refers to.
    """
    with managed_table(wanted, url) as (_, managed):
        if managed is None:
            return open_table(wanted, file, pairs), None
        from memwal.fleet.tables import open_managed

        given = storage_options(file, pairs) or None
        return open_managed(managed, storage_options=given), managed.policy


TYPES_HELP = (
    "int64, string, float32, bool, binary, date32, timestamp[us], timestamp[us, UTC], "
    "decimal128(10, 2), list<string>, float32[128] for a vector, ..."
)

REGIONS_HELP = (
    "bucket:COLUMN:N, multi_bucket:COLUMN,COLUMN:N, identity:COLUMN, truncate:COLUMN:WIDTH, "
    "year:COLUMN, month:COLUMN, day:COLUMN, hour:COLUMN, expression:TYPE:COLUMN,COLUMN:SQL over "
    "col0, col1 and so on, unsharded, or manual"
)

_EXPRESSION = re.compile(r"([^:]+):([^:]+):(.+)", re.DOTALL)
_VECTOR = re.compile(r"(.+)\[([1-9][0-9]{0,8})\]")
_LIST = re.compile(r"list<(.+)>")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), ?([^\]]+)\]")
_DECIMAL = re.compile(r"decimal(128|256)\(([0-9]{1,3}), ?(-?[0-9]{1,3})\)")
_LONGEST_TYPE = 200
_NUMBER = re.compile(r"[0-9]{1,19}")


def schema_from(file: Path | None, columns: Sequence[str] | None) -> pa.Schema:
    """Schema from a file, or from columns of the form ``name:type``.

    Raises
    ------
    InvalidInputError
        Neither or both are given, or one of them cannot be read.
    """
    import pyarrow as pa

    if (file is None) == (not columns):
        raise InvalidInputError("give the columns either as --schema FILE or as --column NAME:TYPE")
    if file is not None:
        return _read_schema(file)
    fields = []
    for column in columns or ():
        name, separator, text = column.rpartition(":")
        if not separator or not name or not is_unicode(name):
            raise InvalidInputError(f"column {column!r} is not of the form NAME:TYPE")
        fields.append(pa.field(name, parse_type(text.strip())))
    return pa.schema(fields)


def parse_type(text: str) -> pa.DataType:
    """Arrow type of a text such as ``int64``, ``float32[128]`` or ``list<string>``.

    Raises
    ------
    InvalidInputError
        No type is called that.
    """
    import pyarrow as pa

    if len(text) > _LONGEST_TYPE:
        raise InvalidInputError(f"a type of {len(text)} characters is none; known are {TYPES_HELP}")
    if found := _LIST.fullmatch(text):
        return pa.list_(parse_type(found[1]))
    if found := _VECTOR.fullmatch(text):
        return pa.list_(parse_type(found[1]), int(found[2]))
    try:
        if found := _ZONED.fullmatch(text):
            return pa.timestamp(found[1], tz=found[2])
        if found := _DECIMAL.fullmatch(text):
            make = pa.decimal128 if found[1] == "128" else pa.decimal256
            return make(int(found[2]), int(found[3]))
        return pa.type_for_alias(text)
    except ValueError as error:
        raise InvalidInputError(f"{text!r} is not a type; known are {TYPES_HELP}") from error


def parse_regions(texts: Sequence[str]) -> RegionSpec | None:
    """Region spec of one text, or of several whose values name a region together.

    Returns
    -------
    RegionSpec or None
        None for ``manual``.

    Raises
    ------
    InvalidInputError
        A text is none of :data:`REGIONS_HELP`, or says what no region spec can be.
    """
    from memwal.region.spec import RegionSpec

    if list(texts) == ["manual"]:
        return None
    parts = [_parse_region_field(text) for text in texts]
    return parts[0] if len(parts) == 1 else RegionSpec.combine(*parts)


def _parse_region_field(text: str) -> RegionSpec:
    from memwal.region.spec import RegionSpec

    plain = text.removeprefix("immutable:")
    immutable = plain != text
    kind, _, rest = plain.partition(":")
    # Column names may have colons in them, numbers and types have none.
    columns, _, number = rest.rpartition(":")
    match kind:
        case "bucket" if columns and _NUMBER.fullmatch(number):
            return RegionSpec.bucket(columns, int(number), immutable=immutable)
        case "multi_bucket" if columns and _NUMBER.fullmatch(number):
            return RegionSpec.multi_bucket(columns.split(","), int(number), immutable=immutable)
        case "truncate" if columns and _NUMBER.fullmatch(number):
            return RegionSpec.truncate(columns, int(number), immutable=immutable)
        case "identity" | "year" | "month" | "day" | "hour" if rest:
            made: RegionSpec = getattr(RegionSpec, kind)(rest, immutable=immutable)
            return made
        case "expression" if found := _EXPRESSION.fullmatch(rest):
            return RegionSpec.expression(
                found[3], found[2].split(","), parse_type(found[1]), immutable=immutable
            )
        case "unsharded" if plain == text == "unsharded":
            return RegionSpec.unsharded()
    raise InvalidInputError(f"{text!r} does not divide a table; give {REGIONS_HELP}")


def _read_schema(file: Path) -> pa.Schema:
    import pyarrow as pa

    readers = {
        ".parquet": _parquet,
        ".json": _json,
        **dict.fromkeys((".arrow", ".feather", ".ipc", ".arrows"), _arrow),
    }
    read = readers.get(file.suffix.lower())
    if read is None:
        raise InvalidInputError(f"cannot tell what {file} is: name it {', '.join(sorted(readers))}")
    try:
        return read(file)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InvalidInputError(f"cannot read a schema from {file}: {error}") from error


def _parquet(file: Path) -> pa.Schema:
    import pyarrow.parquet as pq

    return pq.read_schema(file).remove_metadata()


def _arrow(file: Path) -> pa.Schema:
    import pyarrow as pa

    with pa.memory_map(str(file)) as source:
        try:
            return pa.ipc.open_file(source).schema.remove_metadata()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).schema.remove_metadata()


def _json(file: Path) -> pa.Schema:
    from lance.schema import json_to_schema

    description = read_json(file.read_text(encoding="utf-8"))
    try:
        return json_to_schema(description)
    except BaseException as error:
        # Lance takes what it expects for granted; a panic of its own is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"it does not describe a schema as Lance does ({error})") from error


@contextlib.contextmanager
def open_catalog(url: str | None) -> Iterator[Catalog]:
    """The catalog that a command line names, closed at the end."""
    from memwal.catalog import Catalog

    catalog = Catalog(url)
    try:
        yield catalog
    finally:
        catalog.close()


Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the managed table.", autocompletion=table_names),
]
