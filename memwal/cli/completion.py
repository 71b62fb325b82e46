"""What a shell offers after Tab: names of managed tables, and regions of a table that is near.

It answers while somebody waits for the next key, so that it takes what is cheap: the snapshot of
the catalog before its database, and a listing of a folder, never a request to an object store. A
shell has no place for an error; where there is one, nothing is offered.
"""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import typer

from memwal.errors import MemWalError


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
    from memwal.catalog.snapshot import PATH_VARIABLE, read_snapshot

    url = ctx.params.get("url")
    snapshot = os.environ.get(PATH_VARIABLE)
    try:
        if snapshot and not url:
            return {table.name: table.uri for table in read_snapshot(snapshot)}
        from memwal.cli.catalog import open_catalog

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
