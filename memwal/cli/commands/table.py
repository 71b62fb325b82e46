"""Commands about one table: ``create``, ``enable``, ``copy``, ``writer-defaults`` and others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from memwal.cli.options import RegionId, Uri, schema_from, storage_options
from memwal.cli.output import (
    Output,
    job_output,
    print_json,
    print_line,
    print_table,
    table_of,
    truncated,
)
from memwal.cli.parameters import Storage
from memwal.errors import InvalidInputError
from memwal.permissions import Role, permissions_of, s3_policy
from memwal.region.spec_text import AS_BEFORE, REGIONS_HELP, TYPES_HELP, UNSHARDED, parse_regions

if TYPE_CHECKING:
    from memwal.queries import Queries
    from memwal.storage.location import TableLocation
    from memwal.table import Table

RegionSpecText = Annotated[
    list[str] | None,
    Option(
        "--regions",
        metavar="SPEC",
        help=f"How rows are divided: {REGIONS_HELP}. Can be given again, to divide by several "
        "values together. Columns belong to the primary key, if there is one, or, with immutable: "
        "in front, never change for a key. LanceDB writes only to bucket, identity and unsharded. "
        "By default a new table is unsharded, and one that had MemWAL is divided as before.",
    ),
]

NoPrimaryKey = Annotated[
    bool,
    Option(
        "--no-primary-key",
        help="The table has no primary key: rows are only added, and none replaces another.",
    ),
]


def _primary_key(columns: list[str] | None, without: bool) -> Sequence[str] | None:
    if columns and without:
        raise InvalidInputError("give either --primary-key or --no-primary-key")
    return () if without else columns or None


def create(
    table: Uri,
    primary_key: Annotated[
        list[str] | None,
        Option("--primary-key", metavar="COLUMN", help="Key column; again for each, in key order."),
    ] = None,
    no_primary_key: NoPrimaryKey = False,
    regions: RegionSpecText = None,
    schema: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Columns as those of a .parquet or .arrow file, or as a .json file describes "
            "them in Lance's form.",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        Option(metavar="NAME:TYPE", help=f"One column; can be given again. {TYPES_HELP}"),
    ] = None,
    maintain: Annotated[
        list[str] | None,
        Option(
            metavar="COLUMN_idx",
            help="BTREE index to create on a column and to maintain; can be given again.",
        ),
    ] = None,
    data_storage_version: Annotated[
        str | None, Option(metavar="VERSION", help="Lance file version.")
    ] = None,
    stable_row_ids: Annotated[
        bool,
        Option(
            "--stable-row-ids",
            help="A row keeps its id when it is updated or compacted. Cannot be changed later.",
        ),
    ] = False,
    *,
    storage: Storage,
) -> Output:
    """Create an empty table with MemWAL enabled."""
    key = _primary_key(primary_key, no_primary_key)
    if key is None:
        raise InvalidInputError("give --primary-key, or --no-primary-key for rows without a key")
    spec = parse_regions(regions or [UNSHARDED])
    columns = schema_from(schema, column)
    from memwal.create_table import create as create_table

    created = create_table(
        table,
        columns,
        primary_key=key,
        region_spec=spec,
        maintained_indexes=maintain or (),
        storage_options=storage,
        data_storage_version=data_storage_version,
        stable_row_ids=stable_row_ids,
    )
    return _setup_output("created", created)


def enable(
    table: TableLocation,
    regions: RegionSpecText = None,
    primary_key: Annotated[
        list[str] | None,
        Option(
            "--primary-key",
            metavar="COLUMN",
            help="Key column, for a table that has no primary key yet; again for each.",
        ),
    ] = None,
    no_primary_key: NoPrimaryKey = False,
    maintain: Annotated[
        list[str] | None, Option(metavar="INDEX", help="Index to maintain; can be given again.")
    ] = None,
    maintain_all: Annotated[
        bool, Option("--maintain-all", help="Maintain every index, also those made later.")
    ] = False,
) -> Output:
    """Enable MemWAL on a Lance table that exists."""
    if maintain and maintain_all:
        raise InvalidInputError("give either --maintain or --maintain-all")
    spec = parse_regions(regions) if regions else AS_BEFORE
    from memwal.create_table import enable as enable_table

    enabled = enable_table(
        table.uri,
        region_spec=spec,
        maintained_indexes=None if maintain_all else maintain or (),
        primary_key=_primary_key(primary_key, no_primary_key),
        storage_options=table.storage_options,
    )
    return _setup_output("enabled MemWAL on", enabled)


def add_region_spec(table: TableLocation, regions: RegionSpecText) -> Output:
    """Change the regions of a table: flush, seal and merge the old ones, then route rows by SPEC.

    Open writers are fenced, and new ones are refused until the end. After an interruption give the
    same command again.
    """
    spec = parse_regions(regions or [UNSHARDED])
    if spec is None:
        raise InvalidInputError("a table that has region specs cannot go back to manual regions")
    from memwal.resharding import add_region_spec as add_spec

    divided = add_spec(table.uri, spec, storage_options=table.storage_options)
    return _setup_output("divided", divided)


def retire_region(table: TableLocation, region: RegionId) -> Output:
    """Flush, seal and merge REGION for good, where several regions are for the same rows.

    Its rows count as older than those of the regions that stay.
    """
    from memwal.resharding import retire_region as retire

    retired = retire(table.uri, region, storage_options=table.storage_options)
    return job_output(retired)


def copy(
    table: Table,
    target: Annotated[
        str, Argument(metavar="TARGET", help="Address of the copy, where nothing is stored yet.")
    ],
    target_options_file: Annotated[
        Path | None,
        Option(
            "--target-options-file",
            metavar="FILE",
            help="JSON object of storage options of the target; by default those of the table.",
        ),
    ] = None,
) -> Output:
    """Copy a table with all acknowledged rows, while it is in use.

    For backups, and for moves to another store. Writers may go on: the copy has a part of the rows
    that they write during the copy. Old versions and tags are not copied.
    """
    options = dict(table.location.storage_options)
    if target_options_file is not None:
        options = storage_options(target_options_file, None)
    copied = table.copy_to(target, storage_options=options, progress=True)
    return job_output(copied)


def abandon(
    table: Table,
    region: RegionId,
    yes: Annotated[bool, Option("--yes", help="Abandon them; this cannot be undone.")] = False,
) -> Output:
    """Abandon the unflushed rows of a region whose log has a gap or a damaged entry.

    The region can be claimed again afterwards, and everything that is flushed stays. The abandoned
    positions are recorded in the region's folder. A writer that is open is fenced: if there is one,
    let it flush instead.
    """
    from memwal.lsm.wal.abandon import abandon_log, read_abandoned
    from memwal.lsm.wal.claim import claim_region
    from memwal.region.manifest_store import RegionManifestStore

    store = table.location.store
    if RegionManifestStore(store, region).read_latest() is None:
        raise InvalidInputError(
            f"{table.uri} has no region {region}; memwal status lists those that were claimed"
        )
    if not yes:
        raise InvalidInputError(
            f"the unflushed rows of region {region} would be lost for good: keep a copy of the "
            "region's folder, and give --yes"
        )
    merged = table.base().details.merged.get(region, 0)
    claim = abandon_log(store, claim_region(store, region, merged=merged, replay=False))
    epoch = claim.manifest.writer_epoch
    records = [record for record in read_abandoned(store, region) if record.epoch == epoch]
    rows, entries = (sum(getattr(r, name) for r in records) for name in ("rows", "entries"))
    value = {
        "region": str(region),
        "rows": rows,
        "entries": entries,
        "records": [record.key for record in records],
    }
    return Output(value, f"abandoned {rows} rows in {entries} entries of the log")


def writer_defaults(
    table: Table,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="OPTION=VALUE",
            help="Option of WriterOptions that all writers of the table start with, such as "
            "max_memtable_age=10; durations in seconds, or never. Can be given again.",
        ),
    ] = None,
    resets: Annotated[
        list[str] | None,
        Option("--reset", metavar="OPTION", help="Option to set no longer; can be given again."),
    ] = None,
) -> Output:
    """Set options of all writers of a table; without --set and --reset, show them.

    They are stored in the table. Writers that are open keep theirs.
    """
    from memwal.writer.region_writer.options import parse_writer_options, set_writer_defaults

    if settings:
        set_writer_defaults(table.location, parse_writer_options(settings))
    if resets:
        table.reset_writer_defaults(*resets)
    defaults = table.writer_defaults
    shown = {name: "never" if value == inf else value for name, value in defaults.items()}
    text = table_of(["option", "value"], sorted(defaults.items()))
    return Output(
        {"table": table.uri, "writer_defaults": shown},
        text if defaults else "the table sets no options of its writers",
    )


def _setup_output(verb: str, table: Table) -> Output:
    from memwal.lsm.indexes.catchup import maintained_index_names, unmaintained_index_names

    base = table.base()
    regions = str(table.region_spec()[1]) if base.details.region_specs else "manual"
    indexes = maintained_index_names(base)
    value = {
        "uri": table.uri,
        "version": base.version,
        "columns": {field.name: str(field.type) for field in base.schema},
        "primary_key": base.primary_key,
        "regions": regions,
        "maintained_indexes": indexes,
        "maintain_all_indexes": base.details.maintain_all_indexes,
    }
    text = (
        f"{verb} {table.uri}: key {', '.join(base.primary_key) or 'none'}, regions {regions}, "
        f"maintained indexes {', '.join(indexes) or 'none'}"
    )
    if others := unmaintained_index_names(base):
        text += (
            f"\nnot maintained: {', '.join(others)}; rows that are not merged yet are searched "
            f"without them until you run: memwal index maintain {table.uri} --add NAME"
        )
    return Output(value, text)


def rights(
    roles: Annotated[
        list[Role] | None,
        Argument(
            metavar="[ROLE]...",
            help=f"Use of the table: {', '.join(Role)}. Several roles have the rights of each; "
            "without one, all are shown.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        Option(
            "--policy",
            metavar="URI",
            help="Print the policy that grants these rights on the table at an address in S3.",
        ),
    ] = None,
    conditions: Annotated[
        bool,
        Option(
            " /--without-conditions",
            help="Omit the condition s3:if-none-match, for servers that do not know it; then a "
            "writer could overwrite objects of another writer.",
        ),
    ] = True,
) -> Output:
    """Show which rights on a table's objects a role needs, or print a policy that grants them.

    Reads neither the table nor the store. Keys are relative to the table's root, and * in them
    stands for anything. create is a put that is refused when the name is taken.
    """
    if policy is not None:
        if not roles:
            raise InvalidInputError(f"name the roles that the policy is for: {', '.join(Role)}")
        text = s3_policy(policy, roles, conditions=conditions)
        return Output(text, partial(print_json, text))
    permissions = {str(role): permissions_of([role]) for role in Role}
    if roles:
        permissions = {"+".join(roles): permissions_of(roles)}
    value = {role: {r.action: r.keys for r in rights} for role, rights in permissions.items()}
    lines = [
        (role, right.action.value, key)
        for role, rights in permissions.items()
        for right in rights
        for key in right.keys
    ]
    return Output(value, table_of(("role", "act", "keys"), lines))


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
