"""``memwal index``: build indexes, choose the maintained ones, migrate a vector index."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from memwal.cli.job_options import takes_options_of
from memwal.cli.options import AsJson, OptionPairs, OptionsFile, Uri, open_table
from memwal.cli.output import print_fields, print_json, print_result
from memwal.jobs.options import IndexOptions

if TYPE_CHECKING:
    from memwal.jobs.index.migration import MigrationStatus

_BUILD = "build"
_SHOWN = 5


class _BuildsByDefault(TyperGroup):
    """A group whose command ``build`` is meant where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [_BUILD, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_BuildsByDefault,
    help="Catch the maintained indexes up with what was merged, choose which they are, or migrate "
    "one to a new model.",
)
migrate = typer.Typer(
    no_args_is_help=True,
    help="Replace a vector index by one with newly trained centroids and codebook: start, switch, "
    "finish. Every step can be repeated.",
)
app.add_typer(migrate, name="migrate")

Old = Annotated[str, typer.Option("--index", metavar="NAME", help="The index to be replaced.")]
New = Annotated[
    str | None,
    typer.Option("--to", metavar="NAME", help="Its successor; by default NAME_v2, then _v3 ..."),
]


@app.command(_BUILD)
@takes_options_of(IndexOptions, leave_out=("max_tasks",))
def index(
    table: Uri,
    changes: dict[str, Any],
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Catch the maintained indexes up with what was merged.

    A vector index gets a new model by: memwal index migrate --help
    """
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.cli.output import progress
    from memwal.jobs.index.job import build_indexes

    options = IndexOptions(**changes)
    with progress("indexing") as run:
        result = build_indexes(opened.location, replace(options, run=run))
    print_result(result, as_json=as_json)


@app.command()
def maintain(
    table: Uri,
    add: Annotated[
        list[str] | None,
        typer.Option("--add", metavar="NAME", help="Index to maintain; can be given again."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            "--remove", metavar="NAME", help="Index to maintain no longer; can be given again."
        ),
    ] = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Choose which indexes are maintained; without --add and --remove, show them.

    The index itself is built, and dropped, on the Lance table.
    """
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.jobs.index.selection import choose_indexes

    names = choose_indexes(opened.location, add=add or (), remove=remove or ())
    if as_json:
        print_json({"table": opened.uri, "maintained_indexes": names})
        return
    print_fields([("maintained indexes", ", ".join(names) or "none")])


@migrate.command()
def start(
    table: Uri,
    old: Old,
    new: New = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Partitions of the new index.")
    ] = None,
    sub_vectors: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Sub-vectors of its quantizer.")
    ] = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Train and build the new index; from then on generations carry both."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.jobs.index.migration import start_migration

    _show(
        start_migration(
            opened.location,
            old,
            new=new,
            num_partitions=partitions,
            num_sub_vectors=sub_vectors,
        ),
        as_json=as_json,
    )


@migrate.command()
def status(
    table: Uri,
    old: Old,
    new: New = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Tell which step is reached, and what the next one waits for."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.jobs.index.migration import migration_status

    _show(migration_status(opened.location, old, new=new), as_json=as_json)


@migrate.command()
def switch(
    table: Uri,
    old: Old,
    new: New = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Have readers prefer the new index; refused until it has caught up."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.jobs.index.migration import switch_migration

    _show(switch_migration(opened.location, old, new=new), as_json=as_json)


@migrate.command()
def finish(
    table: Uri,
    old: Old,
    new: New = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Drop the old index; refused until every stored generation carries the new one."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.jobs.index.migration import finish_migration

    _show(finish_migration(opened.location, old, new=new), as_json=as_json)


@migrate.command()
def abort(
    table: Uri,
    old: Old,
    new: New = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Take the new index away again."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.jobs.index.migration import abort_migration

    _show(abort_migration(opened.location, old, new=new), as_json=as_json)


def _show(found: MigrationStatus, *, as_json: bool) -> None:
    uneven = {
        name: None if balance is None else round(balance.unevenness, 2)
        for name, balance in (("old", found.old_balance), ("new", found.new_balance))
    }
    if as_json:
        print_json(
            {
                "old": found.old,
                "new": found.new,
                "step": found.step,
                "caught_up": found.caught_up,
                "lacking": [
                    {"region_id": region_id, "generation": number}
                    for region_id, number in found.lacking
                ],
                "missing": found.missing,
                "unevenness": uneven,
            }
        )
        return
    shown = ", ".join(f"{number} of {region_id}" for region_id, number in found.lacking[:_SHOWN])
    more = len(found.lacking) - _SHOWN
    print_fields(
        [
            ("old index", found.old),
            ("new index", found.new),
            ("step", found.step),
            ("new one has caught up", found.caught_up),
            ("generations without it", shown + (f" and {more} more" if more > 0 else "") or None),
            ("next step waits for", found.missing),
            ("unevenness, old and new", f"{uneven['old'] or '-'}, {uneven['new'] or '-'}"),
        ]
    )
