"""``memwal index``: build indexes, choose the maintained ones, migrate a vector index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from memwal.cli.job_options import takes_options_of
from memwal.cli.options import AsJson, OptionPairs, OptionsFile, Uri, open_table
from memwal.cli.output import print_fields, print_json, print_result
from memwal.jobs.options import IndexOptions

if TYPE_CHECKING:
    from memwal.jobs.index.migration import IndexMigration, MigrationStatus

_BUILD = "build"
_MAX_LISTED = 5


class _BuildsByDefault(TyperGroup):
    """Command group that runs ``build`` if no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [_BUILD, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_BuildsByDefault,
    help="Catch the maintained indexes up with merges, choose which they are, or migrate one to a "
    "new model.",
)
migrate = typer.Typer(
    no_args_is_help=True,
    help="Replace a vector index by one with newly trained centroids and codebook: start, switch, "
    "finish. Every step can be repeated.",
)
app.add_typer(migrate, name="migrate")

Old = Annotated[str, typer.Option("--index", metavar="NAME", help="Index to replace.")]
New = Annotated[
    str | None,
    typer.Option("--to", metavar="NAME", help="Its successor; by default NAME_v2, then _v3 ..."),
]


@app.command(_BUILD)
@takes_options_of(IndexOptions, leave_out=("max_tasks",))
def build(
    table: Uri,
    changes: dict[str, Any],
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Catch the maintained indexes up with merges.

    To give a vector index a new model, see: memwal index migrate --help
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

    The indexes themselves are built and dropped on the Lance table.
    """
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.jobs.index.migration import choose_indexes

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
    from memwal.jobs.index.migration import IndexMigration

    migration = IndexMigration(opened.location, old, new=new)
    started = migration.start(num_partitions=partitions, num_sub_vectors=sub_vectors)
    _print_status(started, as_json=as_json)


def _add_step(name: str, summary: str, step: Callable[[IndexMigration], MigrationStatus]) -> None:
    """Add a command that only takes the names of the indexes and the common options."""

    @migrate.command(name, help=summary)
    def command(
        table: Uri,
        old: Old,
        new: New = None,
        storage_options_file: OptionsFile = None,
        storage_option: OptionPairs = None,
        as_json: AsJson = False,
    ) -> None:
        opened = open_table(table, storage_options_file, storage_option)
        from memwal.jobs.index.migration import IndexMigration

        migration = IndexMigration(opened.location, old, new=new)
        _print_status(step(migration), as_json=as_json)


_add_step(
    "status",
    "Show the step that is reached, and what the next one waits for.",
    lambda migration: migration.status(),
)
_add_step(
    "switch",
    "Have readers prefer the new index; refused until it has caught up.",
    lambda migration: migration.switch(),
)
_add_step(
    "finish",
    "Drop the old index; refused until every stored generation carries the new one.",
    lambda migration: migration.finish(),
)
_add_step("abort", "Remove the new index again.", lambda migration: migration.abort())


def _print_status(status: MigrationStatus, *, as_json: bool) -> None:
    uneven = {
        name: None if balance is None else round(balance.unevenness, 2)
        for name, balance in (("old", status.old_balance), ("new", status.new_balance))
    }
    if as_json:
        print_json(
            {
                "old": status.old,
                "new": status.new,
                "step": status.step.value,
                "caught_up": status.caught_up,
                "lacking": [
                    {"region_id": region_id, "generation": number}
                    for region_id, number in status.lacking
                ],
                "missing": status.missing,
                "unevenness": uneven,
            }
        )
        return
    generations = ", ".join(
        f"{number} of {region_id}" for region_id, number in status.lacking[:_MAX_LISTED]
    )
    more = len(status.lacking) - _MAX_LISTED
    if more > 0:
        generations += f" and {more} more"
    print_fields(
        [
            ("old index", status.old),
            ("new index", status.new),
            ("step", status.step.value),
            ("new one has caught up", status.caught_up),
            ("generations without it", generations or None),
            ("next step waits for", status.missing),
            ("unevenness, old and new", f"{uneven['old'] or '-'}, {uneven['new'] or '-'}"),
        ]
    )
