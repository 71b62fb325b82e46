"""``memwal consumers``: the consumers of a table's changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from memwal.boundary.text import age, size
from memwal.cli.output import Output, print_fields, print_table
from memwal.cli.parameters import CommandGroup
from memwal.errors import InvalidInputError

if TYPE_CHECKING:
    from memwal.jobs.status import ConsumerStatus
    from memwal.table import Table

app = CommandGroup(help="Show the consumers of a table's changes, and let them begin again.")

Name = Annotated[str, Argument(metavar="CONSUMER", help="Name of the consumer.")]


@app.command(name="list")
def list_consumers(table: Table) -> Output:
    """List the consumers of a table."""
    found = table.status().consumers
    return Output([asdict(consumer) for consumer in found], partial(print_consumers, found))


@app.command()
def show(table: Table, name: Name) -> Output:
    """Show a consumer, and the token that it committed."""
    from memwal.feed.consumer_state import read_state

    consumer = _find(table, name)
    state = read_state(table.location.store, name)
    fields = {**asdict(consumer), "token": None if state is None else state.token}
    return Output(fields, partial(print_fields, fields.items()))


@app.command()
def reset(
    table: Table,
    name: Name,
    now: Annotated[bool, Option("--now", help="Pass over what changed until now.")] = False,
) -> Output:
    """Let a consumer begin again with the whole table. The process that reads for it is fenced."""
    _find(table, name)
    consumer = table.consumer(name)
    consumer.reset("now" if now else None)
    start = "what changes from now on" if now else "the whole table"
    return Output({"name": name, "epoch": consumer.epoch}, f"{name} begins again with {start}")


@app.command()
def drop(table: Table, name: Name) -> Output:
    """End a consumer: nothing is kept for it any more. The process that reads for it is fenced."""
    _find(table, name)
    table.consumer(name).drop()
    return Output({"name": name}, f"{name} is dropped")


def _find(table: Table, name: str) -> ConsumerStatus:
    found = table.status().consumers
    for consumer in found:
        if consumer.name == name:
            return consumer
    names = ", ".join(consumer.name for consumer in found) or "none"
    raise InvalidInputError(f"{table.uri} has no consumer {name!r}; it has {names}")


def print_consumers(consumers: Sequence[ConsumerStatus]) -> None:
    """Print a line for each consumer; nothing without any."""
    if consumers:
        print_table(
            ("consumer", "committed", "idle", "held", "owner", "expired"),
            [
                (
                    one.name,
                    "nothing" if one.version is None else f"version {one.version}",
                    age(one.idle_seconds),
                    size(one.held_bytes),
                    f"{one.owner} (epoch {one.epoch})",
                    one.expired,
                )
                for one in consumers
            ],
        )
