"""Tables that a command line names: by their name in the catalog, or by their address."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memwal.cli.catalog import open_catalog
from memwal.cli.completion import table_names
from memwal.cli.options import open_table, storage_options
from memwal.errors import MissingExtraError, ObjectNotFoundError, TableSetupError

if TYPE_CHECKING:
    from memwal.catalog import Catalog, ManagedTable, Policy
    from memwal.table import Table

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
