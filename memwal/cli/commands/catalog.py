"""``memwal catalog``: the registry of managed tables and their policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from memwal.boundary.text import plural, timestamp
from memwal.cli.options import Name, open_table
from memwal.cli.output import Output, print_fields, print_line, records_output, table_of
from memwal.cli.parameters import CommandGroup, Storage
from memwal.errors import InvalidInputError
from memwal.storage.credentials import read_options_file
from memwal.util.records import JsonMapping, JsonObject
from memwal.util.safe_json import read_json

if TYPE_CHECKING:
    from memwal.catalog import Catalog, ManagedTable, Policy
    from memwal.table import Table

app = CommandGroup()
policy_app = CommandGroup()
app.add_typer(policy_app, name="policy", help="Show or change when and how a table is maintained.")

OptionsRef = Annotated[
    str | None,
    Option(
        "--storage-options-ref",
        metavar="REF",
        help="Reference to the storage options: the absolute path of a JSON file, or "
        "airflow:CONNECTION.",
    ),
]
Owner = Annotated[str, Option("--owner", metavar="TEXT", help="Who to ask.")]
Settings = Annotated[
    list[str] | None,
    Option(
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
def migrate(catalog: Catalog) -> Output:
    """Create the catalog's schema, or bring it up to date."""
    catalog.migrate()
    shown_url = catalog.database.shown_url
    return Output({"catalog": shown_url}, f"the catalog {shown_url} is up to date")


AllTables = Annotated[
    bool,
    Option("--all", help="Every table of the folder or LanceDB database at ADDRESS."),
]


@app.command()
def register(
    name: Annotated[
        str | None,
        Argument(metavar="NAME", help="Name of the managed table; with --all, the address."),
    ] = None,
    table: Annotated[
        str | None, Argument(metavar="[TABLE]", help="Address: a path, s3://, gs:// or az://.")
    ] = None,
    every_table: AllTables = False,
    storage_options_ref: OptionsRef = None,
    owner: Owner = "memwal",
    disabled: Annotated[bool, Option("--disabled", help="Do not maintain the table.")] = False,
    policy: Settings = None,
    check: Annotated[
        bool,
        Option(
            "--check/--no-check",
            help="Whether to open the table first. One whose storage options are in an Airflow "
            "connection is never opened.",
        ),
    ] = True,
    *,
    catalog: Catalog,
) -> Output:
    """Add a table, with MemWAL or without; with --all, those of a folder, also later ones."""
    from memwal.catalog import Policy
    from memwal.catalog.records import (
        CONNECTION_PREFIX,
        check_name,
        check_storage_options_ref,
        check_uri,
    )

    if name is None or every_table == (table is not None):
        raise InvalidInputError("give NAME and TABLE, or --all and one address")
    chosen = _changed_policy(Policy(), policy or ())
    reference = check_storage_options_ref(storage_options_ref)
    only_airflow = (reference or "").startswith(CONNECTION_PREFIX)
    if table is None:
        from memwal.fleet.tables import add_folder

        new = add_folder(
            catalog,
            name,
            storage_options_ref=reference,
            policy=chosen,
            owner=owner,
            enabled=not disabled,
        )
        rows = table_of(("name", "address", "MemWAL"), [(t.name, t.uri, t.mem_wal) for t in new])
        return Output([t.to_dict() for t in new], rows if new else f"no table of {name} is new")
    check_name(name)
    check_uri(table)
    opened = None
    if check and not only_airflow:
        opened = open_table(table, read_options_file(Path(reference)) if reference else {})
    added = catalog.register(
        name,
        uri=table,
        storage_options_ref=storage_options_ref,
        owner=owner,
        enabled=not disabled,
        policy=chosen,
        mem_wal=opened is None or opened.base().index is not None,
    )
    state = "it was not opened" if opened is None else _describe(opened)
    maintained = "maintained from now on" if added.enabled else "not maintained"
    next_step = (
        f"memwal status {name} shows what is due, memwal fleet run does it"
        if added.enabled
        else f"memwal catalog enable {name} starts its maintenance"
    )
    others = ", ".join(t.name for t in catalog.list() if t.uri == added.uri and t.name != name)
    warning = f"this address is registered as {others} too: the jobs of each name run on it"
    return Output(
        added,
        f"registered {name}: {added.uri}, {state}\n"
        f"owner {added.owner}, {maintained}; memwal catalog policy show {name}\n{next_step}",
        warnings=(warning,) if others else (),
    )


def _describe(table: Table) -> str:
    """Describe a table that is open in one line."""
    base, regions = table.base(), len(table.region_ids())
    claimed = f"{plural(regions, 'region')} claimed" if base.index else "without MemWAL"
    return f"version {base.version}, key {', '.join(base.primary_key) or 'none'}, {claimed}"


@app.command()
def update(
    name: Name,
    table: Annotated[str | None, Option("--table", metavar="TABLE", help="New address.")] = None,
    storage_options_ref: OptionsRef = None,
    no_storage_options: Annotated[
        bool, Option("--no-storage-options", help="Remove the reference to storage options.")
    ] = False,
    owner: Annotated[str | None, Option(metavar="TEXT", help="Who to ask.")] = None,
    policy: Settings = None,
    *,
    catalog: Catalog,
) -> Output:
    """Change the record of a table."""
    if no_storage_options and storage_options_ref is not None:
        raise InvalidInputError(
            "--storage-options-ref and --no-storage-options exclude each other; give one"
        )
    values = {"uri": table, "owner": owner, "storage_options_ref": storage_options_ref}
    changes: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
    if no_storage_options:
        changes["storage_options_ref"] = None
    if policy:
        changes["policy"] = _changed_policy(catalog.get(name).policy, policy)
    if not changes:
        raise InvalidInputError("nothing to change was given; see memwal catalog update --help")
    return _managed_output(catalog.update(name, **changes))


@app.command(name="list")
def list_tables(
    enabled: Annotated[bool, Option("--enabled", help="Only enabled tables.")] = False,
    tag: Annotated[
        list[str] | None,
        Option("--tag", metavar="TAG", help="Only tables with this tag; can be repeated."),
    ] = None,
    *,
    catalog: Catalog,
) -> Output:
    """List the tables by name."""
    tags = set(tag or ())
    return records_output(
        [t for t in catalog.list(enabled_only=enabled) if tags <= set(t.policy.tags)],
        ("name", "address", "maintained", "owner", "priority", "tags"),
        ("name", "uri", "enabled", "owner", "policy.priority", lambda t: " ".join(t.policy.tags)),
    )


@app.command()
def show(name: Name, catalog: Catalog) -> Output:
    """Show the record of a table and its policy."""
    return _managed_output(catalog.get(name))


@app.command()
def unregister(
    name: Annotated[
        str, Argument(metavar="NAME", help="Name of the managed table; with --all, the address.")
    ],
    every_table: AllTables = False,
    *,
    catalog: Catalog,
) -> Output:
    """Remove a table; the table itself and its history stay.

    With --all, a folder: its tables stay registered, those made later are not registered.
    """
    if every_table:
        removed = catalog.remove_folder(name)
        return Output(removed, f"new tables of {removed.uri} are not registered any more")
    return _managed_output(catalog.unregister(name))


@app.command()
def folders(catalog: Catalog) -> Output:
    """List the folders whose tables are registered."""
    return records_output(
        catalog.folders(),
        ("address", "maintained", "owner", "storage options", "problem"),
        ("uri", "enabled", "owner", "storage_options_ref", "problem"),
    )


@app.command()
def enable(name: Name, catalog: Catalog) -> Output:
    """Maintain a table from now on."""
    return _managed_output(catalog.update(name, enabled=True))


@app.command()
def disable(name: Name, catalog: Catalog) -> Output:
    """Keep a table registered and stop its maintenance."""
    return _managed_output(catalog.update(name, enabled=False))


@app.command()
def export(
    file: Annotated[Path, Argument(metavar="FILE", help="JSON file to write or replace.")],
    catalog: Catalog,
) -> Output:
    """Write all tables to the file that Airflow builds its DAGs from."""
    catalog.export_snapshot(file)
    count = len(catalog.list())
    return Output({"file": str(file), "tables": count}, f"{count} tables written to {file}")


@app.command()
def prune(catalog: Catalog) -> Output:
    """Delete job runs and backlog samples that are older than the policies keep them."""
    pruned = catalog.prune()
    columns = ("table", "runs deleted", "samples deleted")
    rows = [(name, n.runs, n.samples) for name, n in pruned.items()]
    return Output({name: asdict(n) for name, n in pruned.items()}, table_of(columns, rows))


@app.command()
def discover(
    prefix: Annotated[str, Argument(metavar="PREFIX", help="A folder, or a bucket and a path.")],
    depth: Annotated[int, Option(min=0, metavar="N", help="Maximal depth of folders.")] = 4,
    *,
    storage: Storage,
    catalog: Catalog,
) -> Output:
    """Find the Lance tables below a folder or in a bucket; memwal catalog register --all adds them.

    Shows which have MemWAL, and which are registered.
    """
    from memwal.fleet.tables import find_tables
    from memwal.storage.uris import parse_uri

    found = find_tables(prefix, storage_options=storage, depth=depth)
    names = {parse_uri(table.uri): table.name for table in catalog.list()}
    tables = [
        {**table.to_dict(), "registered_as": names.get(parse_uri(table.uri))} for table in found
    ]
    columns = ("address", "MemWAL", "problem", "registered as")
    return Output(tables, table_of(columns, [tuple(table.values()) for table in tables]))


@policy_app.command(name="show")
def show_policy(name: Name, catalog: Catalog) -> Output:
    """Show when and how a table is maintained."""
    policy = catalog.get(name).policy
    return Output(policy, partial(_print_policy, policy))


@policy_app.command(name="set")
def set_policy(
    name: Name,
    settings: Annotated[
        list[str],
        Argument(
            metavar="KEY=VALUE...",
            help="none is no limit; several tags or quiet hours are joined by commas.",
        ),
    ],
    catalog: Catalog,
) -> Output:
    """Change keys of a policy; the others stay as they are. Prints the changes.

    A policy that cannot be read is replaced: its other keys take their defaults.
    """
    stored = catalog.get(name, allow_problem=True)
    before = stored.policy
    policy = _changed_policy(before, settings)
    catalog.update(name, policy=policy)
    if stored.problem is not None:
        replaced = (
            f"the policy of {name} could not be read and is replaced; keys that were not given "
            "have their defaults:"
        )
        return Output(policy, partial(_print_policy, policy, replaced))
    old, new = _shown_policy(before), _shown_policy(policy)
    changed = [(key, old[key], new[key]) for key in new if old[key] != new[key]]
    if not changed:
        return Output(policy, f"the policy of {name} had these values already")
    return Output(policy, table_of(("key", "before", "now"), changed))


def _changed_policy(policy: Policy, settings: Sequence[str]) -> Policy:
    from memwal.catalog import Policy

    return Policy.from_dict({**policy.to_dict(), **parse_settings(settings)})


def parse_settings(settings: Sequence[str]) -> JsonMapping:
    """Parse settings of a policy, ``KEY=VALUE``."""
    values: JsonObject = {}
    for number, setting in enumerate(settings, start=1):
        key, separator, text = setting.partition("=")
        if not separator or not key:
            raise InvalidInputError(f"policy setting {number} is not of the form KEY=VALUE")
        if key in ("tags", "quiet_hours", "allow_external"):
            values[key] = [part.strip() for part in text.split(",") if part.strip()]
        elif text.lower() == "none":
            values[key] = None
        else:
            try:
                values[key] = read_json(text)
            except ValueError:
                # A cron expression, or a mistake that the policy reports with its key.
                values[key] = text
    return values


def _managed_output(table: ManagedTable) -> Output:
    return Output(table, partial(_print_managed, table))


def _print_managed(table: ManagedTable) -> None:
    print_fields(
        [
            ("name", table.name),
            ("address", table.uri),
            ("storage options", table.storage_options_ref),
            ("owner", table.owner),
            ("maintained", table.enabled),
            ("registered", f"{timestamp(table.created_at)} UTC"),
            ("changed", f"{timestamp(table.updated_at)} UTC"),
        ]
    )
    _print_policy(table.policy, "policy:")


def _print_policy(policy: Policy, title: str = "") -> None:
    if title:
        print_line(title)
    print_fields((f"  {key}", value) for key, value in _shown_policy(policy).items())


def _shown_policy(policy: Policy) -> JsonMapping:
    """Return the values of a policy as people read them."""
    values = policy.to_dict()
    if policy.quality is not None:
        values["quality"] = f"{policy.quality.mode}, {len(policy.quality.suite)} expectations"
    return {
        key: ", ".join(value) or None if isinstance(value, list) else value
        for key, value in values.items()
    }
