"""``memwal index``: build indexes, choose the maintained ones, migrate a vector index."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Option

from memwal.cli.output import Output, job_output, print_fields
from memwal.cli.parameters import Changes, CommandGroup, takes_options_of
from memwal.jobs.options import IndexOptions

if TYPE_CHECKING:
    from memwal.jobs.index.migration import IndexMigration, MigrationStatus
    from memwal.table import Table

_MAX_LISTED = 5


app = CommandGroup(
    help="Catch the maintained indexes up with merges, choose which they are, or migrate one to a "
    "new model.",
)
migrate = CommandGroup(
    help="Replace a vector index by one with newly trained centroids and codebook: start, switch, "
    "finish. Every step can be repeated."
)
app.add_typer(migrate, name="migrate")

Old = Annotated[str, Option("--index", metavar="NAME", help="Index to replace.")]
New = Annotated[
    str | None,
    Option("--to", metavar="NAME", help="Its successor; by default NAME_v2, then _v3 ..."),
]


@app.command()
@takes_options_of(IndexOptions, leave_out=("max_tasks",))
def build(table: Table, changes: Changes) -> Output:
    """Catch the maintained indexes up with merges.

    To give a vector index a new model, see: memwal index migrate --help
    """
    from memwal.jobs.index.job import build_indexes

    return job_output(build_indexes(table.location, IndexOptions(**changes, progress=True)))


@app.command()
def maintain(
    table: Table,
    add: Annotated[
        list[str] | None,
        Option("--add", metavar="NAME", help="Index to maintain; can be given again."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        Option("--remove", metavar="NAME", help="Index to maintain no longer; can be given again."),
    ] = None,
) -> Output:
    """Choose which indexes are maintained; without --add and --remove, show them.

    The indexes themselves are built and dropped on the Lance table.
    """
    from memwal.jobs.index.migration import choose_indexes

    names = choose_indexes(table.location, add=add or (), remove=remove or ())
    return Output(
        {"table": table.uri, "maintained_indexes": names},
        f"maintained indexes  {', '.join(names) or 'none'}",
    )


@migrate.command()
def start(
    table: Table,
    old: Old,
    new: New = None,
    partitions: Annotated[
        int | None, Option(min=1, metavar="N", help="Partitions of the new index.")
    ] = None,
    sub_vectors: Annotated[
        int | None, Option(min=1, metavar="N", help="Sub-vectors of its quantizer.")
    ] = None,
) -> Output:
    """Train and build the new index; from then on generations carry both."""
    from memwal.jobs.index.migration import IndexMigration

    migration = IndexMigration(table.location, old, new=new)
    return _status_output(migration.start(num_partitions=partitions, num_sub_vectors=sub_vectors))


def _add_step(name: str, summary: str, step: Callable[[IndexMigration], MigrationStatus]) -> None:
    """Add a command that only takes the names of the indexes and the common options."""

    @migrate.command(name, help=summary)
    def command(table: Table, old: Old, new: New = None) -> Output:
        from memwal.jobs.index.migration import IndexMigration

        migration = IndexMigration(table.location, old, new=new)
        return _status_output(step(migration))


_add_step("status", "Show the current step, and what blocks the next one.", lambda m: m.status())
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


def _status_output(status: MigrationStatus) -> Output:
    uneven = {
        name: None if balance is None else round(balance.unevenness, 2)
        for name, balance in (("old", status.old_balance), ("new", status.new_balance))
    }
    value = {
        "old": status.old,
        "new": status.new,
        "step": status.step.value,
        "caught_up": status.caught_up,
        "lacking": [{"region_id": region, "generation": n} for region, n in status.lacking],
        "missing": status.missing,
        "unevenness": uneven,
    }
    generations = ", ".join(f"{n} of {region}" for region, n in status.lacking[:_MAX_LISTED])
    more = len(status.lacking) - _MAX_LISTED
    if more > 0:
        generations += f" and {more} more"
    fields = [
        ("old index", status.old),
        ("new index", status.new),
        ("step", status.step.value),
        ("new one has caught up", status.caught_up),
        ("generations without it", generations or None),
        ("next step waits for", status.missing),
        ("unevenness, old and new", f"{uneven['old'] or '-'}, {uneven['new'] or '-'}"),
    ]
    return Output(value, partial(print_fields, fields))
