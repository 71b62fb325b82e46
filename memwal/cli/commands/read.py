"""``memwal read``: show rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Option

from memwal.cli.output import Output, print_line, print_table, truncated
from memwal.errors import InvalidInputError

if TYPE_CHECKING:
    from memwal.queries import Queries
    from memwal.table import Table


def read(
    table: Table,
    columns: Annotated[
        list[str] | None,
        Option("--column", metavar="NAME", help="Column to show; again for each. All by default."),
    ] = None,
    filter: Annotated[
        str | None, Option(metavar="SQL", help="Only rows that pass this predicate.")
    ] = None,
    limit: Annotated[int, Option(min=0, metavar="N", help="Most rows to show.")] = 20,
    fresh: Annotated[
        bool,
        Option("--fresh", help="Also read what writers acknowledged and did not flush: the logs."),
    ] = False,
    at_least: Annotated[
        str | None,
        Option(metavar="POSITION", help="Wait for the write with this position. Implies --fresh."),
    ] = None,
    timeout: Annotated[
        float, Option(min=0, metavar="SECONDS", help="How long to wait for that write.")
    ] = 10.0,
    version: Annotated[
        int | None,
        Option(min=1, metavar="N", help="Read the base table alone, as it was at this version."),
    ] = None,
) -> Output:
    """Show rows: the newest of each key, merged or not. Their order is not defined.

    Rows that no writer flushed yet are shown with --fresh only.
    """
    from memwal.format.values import to_python_rows

    reader: Queries = table
    if fresh or at_least is not None:
        if version is not None:
            raise InvalidInputError(
                "a version has no unflushed rows; leave out --version, or --fresh and --at-least"
            )
        reader = table.fresh(at_least=at_least, timeout=timeout)
    elif version is not None:
        reader = table.at(version)
    found = reader.scan(columns=columns, filter=filter, limit=limit).to_table()
    rows = to_python_rows(found)

    def show() -> None:
        if rows:
            cells = [[truncated(value) for value in row.values()] for row in rows]
            print_table(found.column_names, cells)
        if len(rows) == limit:
            print_line(f"there may be more rows: raise --limit above {limit}")
        elif not rows:
            print_line("no rows")

    return Output(rows, show)
