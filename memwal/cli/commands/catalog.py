"""``memwal catalog``: the registry of managed tables and their policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from memwal.boundary.text import plural, timestamp
from memwal.cli.options import AsJson, CatalogUrl, Name, open_catalog, open_table
from memwal.cli.output import (
    print_either,
    print_fields,
    print_json,
    print_line,
    print_records,
    print_table,
)
from memwal.cli.parameters import CommandGroup
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
def migrate(catalog: Catalog, as_json: AsJson = False) -> None:
    """Create the catalog's schema, or bring it up to date."""
    catalog.migrate()
    shown_url = catalog.database.shown_url
    print_either(f"the catalog {shown_url} is up to date", {"catalog": shown_url}, as_json=as_json)


@app.command()
def register(
    name: Name,
    table: Annotated[
        str, Argument(metavar="TABLE", help="Address: a path, s3://, gs:// or az://.")
    ],
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
    as_json: AsJson = False,
) -> None:
    """Add a table that has MemWAL enabled."""
    from memwal.catalog import Policy
    from memwal.catalog.records import (
        CONNECTION_PREFIX,
        check_name,
        check_storage_options_ref,
        check_uri,
    )

    check_name(name)
    check_uri(table)
    chosen = _changed_policy(Policy(), policy or ())
    reference = check_storage_options_ref(storage_options_ref)
    opened = None
    if check and not (reference or "").startswith(CONNECTION_PREFIX):
        opened = open_table(table, read_options_file(Path(reference)) if reference else {})
    added = catalog.register(
        name,
        uri=table,
        storage_options_ref=storage_options_ref,
        owner=owner,
        enabled=not disabled,
        policy=chosen,
    )
    if as_json:
        print_json(added.to_dict())
        return
    state = "it was not opened" if opened is None else _describe(opened)
    maintained = "maintained from now on" if added.enabled else "not maintained"
    next_step = (
        f"memwal status {name} shows what is due, memwal fleet run does it"
        if added.enabled
        else f"memwal catalog enable {name} starts its maintenance"
    )
    print_line(f"registered {name}: {added.uri}, {state}")
    print_line(f"owner {added.owner}, {maintained}; memwal catalog policy show {name}")
    print_line(next_step)


def _describe(table: Table) -> str:
    """Describe a table that is open in one line."""
    base, regions = table.base(), len(table.region_ids())
    return (
        f"version {base.version}, key {', '.join(base.primary_key)}, "
        f"{plural(regions, 'region')} claimed"
    )


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
    as_json: AsJson = False,
) -> None:
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
    _print_managed(catalog.update(name, **changes), as_json=as_json)


@app.command(name="list")
def list_tables(
    enabled: Annotated[bool, Option("--enabled", help="Only enabled tables.")] = False,
    tag: Annotated[
        list[str] | None,
        Option("--tag", metavar="TAG", help="Only tables with this tag; can be repeated."),
    ] = None,
    *,
    catalog: Catalog,
    as_json: AsJson = False,
) -> None:
    """List the tables by name."""
    tags = set(tag or ())
    print_records(
        [t for t in catalog.list(enabled_only=enabled) if tags <= set(t.policy.tags)],
        ("name", "address", "maintained", "owner", "priority", "tags"),
        ("name", "uri", "enabled", "owner", "policy.priority", lambda t: " ".join(t.policy.tags)),
        as_json=as_json,
    )


@app.command()
def show(name: Name, catalog: Catalog, as_json: AsJson = False) -> None:
    """Show the record of a table and its policy."""
    _print_managed(catalog.get(name), as_json=as_json)


@app.command()
def unregister(name: Name, catalog: Catalog, as_json: AsJson = False) -> None:
    """Remove a table from the catalog; the table itself and its history stay."""
    _print_managed(catalog.unregister(name), as_json=as_json)


@app.command()
def enable(name: Name, catalog: Catalog, as_json: AsJson = False) -> None:
    """Maintain a table from now on."""
    _print_managed(catalog.update(name, enabled=True), as_json=as_json)


@app.command()
def disable(name: Name, catalog: Catalog, as_json: AsJson = False) -> None:
    """Keep a table registered and stop its maintenance."""
    _print_managed(catalog.update(name, enabled=False), as_json=as_json)


@app.command()
def export(
    file: Annotated[Path, Argument(metavar="FILE", help="JSON file to write or replace.")],
    catalog: Catalog,
    as_json: AsJson = False,
) -> None:
    """Write all tables to the file that Airflow builds its DAGs from."""
    catalog.export_snapshot(file)
    count = len(catalog.list())
    value = {"file": str(file), "tables": count}
    print_either(f"{count} tables written to {file}", value, as_json=as_json)


@app.command()
def prune(catalog: Catalog, as_json: AsJson = False) -> None:
    """Delete job runs and backlog samples that are older than the policies keep them."""
    pruned = catalog.prune()
    if as_json:
        print_json({name: {"runs": n.runs, "samples": n.samples} for name, n in pruned.items()})
        return
    print_table(
        ("table", "runs deleted", "samples deleted"),
        [(name, n.runs, n.samples) for name, n in pruned.items()],
    )


@app.command()
def discover(
    prefix: Annotated[str, Argument(metavar="PREFIX", help="A folder, or a bucket and a path.")],
    register_new: Annotated[
        bool, Option("--register", help="Register the tables with MemWAL that are new.")
    ] = False,
    enable_new: Annotated[
        bool, Option("--enable", help="With --register: maintain them from now on.")
    ] = False,
    storage_options_ref: OptionsRef = None,
    owner: Owner = "memwal",
    depth: Annotated[int, Option(min=0, metavar="N", help="Maximal depth of folders.")] = 4,
    policy: Settings = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Find the Lance tables below a folder or in a bucket, and show which have MemWAL."""
    if enable_new and not register_new:
        raise InvalidInputError("--enable only goes with --register")
    from memwal.catalog import Policy
    from memwal.catalog.records import CONNECTION_PREFIX
    from memwal.fleet.tables import find_tables, register_tables

    options = None
    if storage_options_ref is not None:
        if storage_options_ref.startswith(CONNECTION_PREFIX):
            raise InvalidInputError(
                "only Airflow can read the storage options in an Airflow connection; give a file, "
                "or let Airflow discover: [memwal] discover in airflow.cfg"
            )
        options = read_options_file(Path(storage_options_ref))
    tables = find_tables(prefix, storage_options=options, depth=depth)
    added: Sequence[ManagedTable] = ()
    if register_new:
        with open_catalog(url) as catalog:
            added = register_tables(
                catalog,
                tables,
                storage_options_ref=storage_options_ref,
                enabled=enable_new,
                policy=_changed_policy(Policy(), policy or ()),
                owner=owner,
            )
    names = {table.uri: table.name for table in added}
    if as_json:
        print_json([{**table.to_dict(), "registered_as": names.get(table.uri)} for table in tables])
        return
    print_table(
        ("address", "MemWAL", "registered as", "problem"),
        [(t.uri, t.mem_wal, names.get(t.uri), t.problem) for t in tables],
    )


@policy_app.command(name="show")
def show_policy(name: Name, catalog: Catalog, as_json: AsJson = False) -> None:
    """Show when and how a table is maintained."""
    _print_policy(catalog.get(name).policy, as_json=as_json)


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
    as_json: AsJson = False,
) -> None:
    """Change keys of a policy; the others stay as they are. Prints the changes.

    A policy that cannot be read is replaced: its other keys take their defaults.
    """
    stored = catalog.get(name, allow_problem=True)
    before = stored.policy
    policy = _changed_policy(before, settings)
    catalog.update(name, policy=policy)
    if as_json:
        print_json(policy.to_dict())
        return
    if stored.problem is not None:
        print_line(
            f"the policy of {name} could not be read and is replaced; keys that were not given "
            "have their defaults:"
        )
        _print_policy(policy, as_json=False)
        return
    old, new = _shown_policy(before), _shown_policy(policy)
    changed = [(key, old[key], new[key]) for key in new if old[key] != new[key]]
    if not changed:
        print_line(f"the policy of {name} had these values already")
        return
    print_table(("key", "before", "now"), changed)


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


def _print_managed(table: ManagedTable, *, as_json: bool) -> None:
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
            ("registered", f"{timestamp(table.created_at)} UTC"),
            ("changed", f"{timestamp(table.updated_at)} UTC"),
        ]
    )
    print_line("policy:")
    _print_policy(table.policy, as_json=False)


def _print_policy(policy: Policy, *, as_json: bool) -> None:
    if as_json:
        print_json(policy.to_dict())
        return
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
