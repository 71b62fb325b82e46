"""``memwal catalog``: the registry of managed tables and their policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memwal.cli.options import AsJson, CatalogUrl, Name, open_catalog
from memwal.cli.output import print_fields, print_json, print_line, print_table
from memwal.errors import InvalidInputError
from memwal.util.safe_json import read_json

if TYPE_CHECKING:
    from memwal.catalog import ManagedTable, Policy

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
policy_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(policy_app, name="policy", help="Show or change when and how a table is maintained.")

OptionsRef = Annotated[
    str | None,
    typer.Option(
        "--storage-options-ref",
        metavar="REF",
        help="Where the storage options are: an absolute path of a JSON file, or "
        "airflow:CONNECTION.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        "-p",
        metavar="KEY=VALUE",
        help="One key of the policy; can be given again. A value of none is no limit; several "
        "tags or quiet hours are joined by commas.",
    ),
]


@app.callback()
def catalog() -> None:
    """Manage the registry of tables that are maintained, and their policies."""


@app.command()
def migrate(url: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Create the catalog's schema, or bring it up to date."""
    with open_catalog(url) as catalog:
        catalog.migrate()
        shown = catalog.database.shown_url
    if as_json:
        print_json({"catalog": shown})
    else:
        print_line(f"the catalog {shown} is up to date")


@app.command()
def register(
    name: Name,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Address of the table. It is not opened.")
    ],
    storage_options_ref: OptionsRef = None,
    owner: Annotated[str, typer.Option(metavar="TEXT", help="Who to ask.")] = "memwal",
    disabled: Annotated[
        bool, typer.Option("--disabled", help="Do not maintain it from now on.")
    ] = False,
    policy: Settings = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Add a table."""
    from memwal.catalog import Policy

    with open_catalog(url) as catalog:
        added = catalog.register(
            name,
            uri=table,
            storage_options_ref=storage_options_ref,
            owner=owner,
            enabled=not disabled,
            policy=_changed(Policy(), policy or ()),
        )
    _show(added, as_json=as_json)


@app.command()
def update(
    name: Name,
    table: Annotated[
        str | None, typer.Option("--table", metavar="TABLE", help="New address.")
    ] = None,
    storage_options_ref: OptionsRef = None,
    no_storage_options: Annotated[
        bool, typer.Option("--no-storage-options", help="Forget where the storage options are.")
    ] = False,
    owner: Annotated[str | None, typer.Option(metavar="TEXT", help="Who to ask.")] = None,
    policy: Settings = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Change what is known of a table."""
    if no_storage_options and storage_options_ref is not None:
        raise InvalidInputError(
            "--storage-options-ref and --no-storage-options exclude each other; give one"
        )
    with open_catalog(url) as catalog:
        changes: dict[str, Any] = {
            key: value
            for key, value in (
                ("uri", table),
                ("owner", owner),
                ("storage_options_ref", storage_options_ref),
            )
            if value is not None
        }
        if no_storage_options:
            changes["storage_options_ref"] = None
        if policy:
            changes["policy"] = _changed(catalog.get(name).policy, policy)
        if not changes:
            raise InvalidInputError("nothing to change was given; see memwal catalog update --help")
        changed = catalog.update(name, **changes)
    _show(changed, as_json=as_json)


@app.command(name="list")
def list_tables(
    enabled: Annotated[bool, typer.Option("--enabled", help="Only those maintained.")] = False,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="Only those with this tag; can be repeated."),
    ] = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """List the tables by name."""
    with open_catalog(url) as catalog:
        tables = [
            table
            for table in catalog.list(enabled_only=enabled)
            if set(tag or ()) <= set(table.policy.tags)
        ]
    if as_json:
        print_json([table.to_dict() for table in tables])
    else:
        print_table(
            ("name", "address", "maintained", "owner", "priority", "tags"),
            [
                (t.name, t.uri, t.enabled, t.owner, t.policy.priority, " ".join(t.policy.tags))
                for t in tables
            ],
        )


@app.command()
def show(name: Name, url: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Show all that is known of a table."""
    with open_catalog(url) as catalog:
        found = catalog.get(name)
    _show(found, as_json=as_json)


@app.command()
def unregister(name: Name, url: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Remove a table from the catalog; the table itself and its history stay."""
    with open_catalog(url) as catalog:
        removed = catalog.unregister(name)
    _show(removed, as_json=as_json)


@app.command()
def enable(name: Name, url: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Maintain a table from now on."""
    with open_catalog(url) as catalog:
        changed = catalog.update(name, enabled=True)
    _show(changed, as_json=as_json)


@app.command()
def disable(name: Name, url: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Keep a table registered and stop its maintenance."""
    with open_catalog(url) as catalog:
        changed = catalog.update(name, enabled=False)
    _show(changed, as_json=as_json)


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON file to write or replace.")],
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write all tables to the file that Airflow builds its DAGs from."""
    with open_catalog(url) as catalog:
        catalog.export_snapshot(file)
        count = len(catalog.list())
    if as_json:
        print_json({"file": str(file), "tables": count})
    else:
        print_line(f"{count} tables written to {file}")


@app.command()
def prune(url: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Forget old job runs and backlog samples, as the policies say."""
    with open_catalog(url) as catalog:
        pruned = catalog.prune()
    if as_json:
        print_json({name: {"runs": n.runs, "samples": n.samples} for name, n in pruned.items()})
    else:
        print_table(
            ("table", "runs forgotten", "samples forgotten"),
            [(name, n.runs, n.samples) for name, n in pruned.items()],
        )


@app.command()
def discover(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="A folder, or a bucket and a path in it.")
    ],
    register_new: Annotated[
        bool, typer.Option("--register", help="Register those with MemWAL that are new.")
    ] = False,
    enable_new: Annotated[
        bool, typer.Option("--enable", help="With --register: maintain them from now on.")
    ] = False,
    storage_options_ref: OptionsRef = None,
    owner: Annotated[str, typer.Option(metavar="TEXT", help="Who to ask.")] = "memwal",
    depth: Annotated[
        int, typer.Option(min=0, metavar="N", help="How many folders deep to look.")
    ] = 4,
    policy: Settings = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Find the Lance tables below a folder or in a bucket, and tell which have MemWAL."""
    if enable_new and not register_new:
        raise InvalidInputError("--enable only goes with --register")
    from memwal.catalog import Policy
    from memwal.catalog.records import CONNECTION_PREFIX
    from memwal.fleet.tables import find_tables, register_tables
    from memwal.storage.credentials import read_options_file

    options = None
    if storage_options_ref is not None:
        if storage_options_ref.startswith(CONNECTION_PREFIX):
            raise InvalidInputError(
                "only Airflow can read the storage options in an Airflow connection; give a file, "
                "or let Airflow discover: [memwal] discover in airflow.cfg"
            )
        options = read_options_file(Path(storage_options_ref))
    found = find_tables(prefix, storage_options=options, depth=depth)
    added: Sequence[ManagedTable] = ()
    if register_new:
        with open_catalog(url) as catalog:
            added = register_tables(
                catalog,
                found,
                storage_options_ref=storage_options_ref,
                enabled=enable_new,
                policy=_changed(Policy(), policy or ()),
                owner=owner,
            )
    names = {table.uri: table.name for table in added}
    if as_json:
        print_json([{**table.to_dict(), "registered_as": names.get(table.uri)} for table in found])
    else:
        print_table(
            ("address", "MemWAL", "registered as", "problem"),
            [(t.uri, t.mem_wal, names.get(t.uri), t.problem) for t in found],
        )


@policy_app.command(name="show")
def show_policy(name: Name, url: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Show when and how a table is maintained."""
    with open_catalog(url) as catalog:
        policy = catalog.get(name).policy
    _show_policy(policy, as_json=as_json)


@policy_app.command(name="set")
def set_policy(
    name: Name,
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...",
            help="none is no limit; several tags or quiet hours are joined by commas.",
        ),
    ],
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Change keys of a policy; the others stay as they are."""
    with open_catalog(url) as catalog:
        policy = _changed(catalog.get(name).policy, settings)
        catalog.update(name, policy=policy)
    _show_policy(policy, as_json=as_json)


def _changed(policy: Policy, settings: Sequence[str]) -> Policy:
    from memwal.catalog import Policy

    return Policy.from_dict({**policy.to_dict(), **_values(settings)})


def _values(settings: Sequence[str]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for number, setting in enumerate(settings, start=1):
        key, separator, text = setting.partition("=")
        if not separator or not key:
            raise InvalidInputError(f"policy setting {number} is not of the form KEY=VALUE")
        if key in ("tags", "quiet_hours"):
            found[key] = [part.strip() for part in text.split(",") if part.strip()]
        elif text.lower() == "none":
            found[key] = None
        else:
            try:
                found[key] = read_json(text)
            except ValueError:
                # A cron expression, or a mistake that the policy names with its key.
                found[key] = text
    return found


def _show(table: ManagedTable, *, as_json: bool) -> None:
    if as_json:
        print_json(table.to_dict())
        return
    print_fields(
        [
            ("name", table.name),
            ("address", table.uri),
            ("storage options", table.storage_options_ref),
            ("owner", table.owner),
            ("maintained", table.enabled),
            ("registered", f"{table.created_at:%Y-%m-%d %H:%M:%S} UTC"),
            ("changed", f"{table.updated_at:%Y-%m-%d %H:%M:%S} UTC"),
        ]
    )
    print_line("policy:")
    _show_policy(table.policy, as_json=False)


def _show_policy(policy: Policy, *, as_json: bool) -> None:
    values = policy.to_dict()
    if as_json:
        print_json(values)
        return
    if policy.quality is not None:
        values["quality"] = f"{policy.quality.mode}, {len(policy.quality.suite)} expectations"
    print_fields(
        (f"  {key}", ", ".join(value) or None if isinstance(value, list) else value)
        for key, value in values.items()
    )
