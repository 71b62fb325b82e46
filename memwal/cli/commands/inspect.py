"""``memwal inspect``: show stored manifests, log entries and MemWAL index details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from typer import Argument, Option

from memwal.cli.options import RegionId
from memwal.cli.output import Output, print_fields, print_line, print_table, truncated
from memwal.cli.parameters import CommandGroup
from memwal.errors import InvalidInputError, MemWalError, ObjectNotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

    from memwal.format.memwal_index import StoredRegionSpec
    from memwal.format.region_manifest import RegionManifest
    from memwal.table import Table

_MANIFEST_FIELDS = (
    "region_id",
    "version",
    "writer_epoch",
    "status",
    "current_generation",
    "replay_after",
    "wal_last_seen",
    "spec_id",
)
_FLUSHED_FIELDS = ("generation", "path", "rows", "memory_bytes", "key_bytes")

app = CommandGroup(help="Show stored manifests, log entries and MemWAL details.")


@app.command()
def manifest(
    table: Table,
    region: RegionId,
    version: Annotated[
        int | None, Option(min=1, metavar="N", help="Version; by default the newest.")
    ] = None,
) -> Output:
    """Show the manifest of a region."""
    stored = _read_manifest(table, region, version)
    fields = {name: getattr(stored, name) for name in _MANIFEST_FIELDS}
    fields["status"] = getattr(stored.status, "name", str(stored.status)).lower()
    flushed = [{name: getattr(item, name) for name in _FLUSHED_FIELDS} for item in stored.flushed]
    value = {**fields, "region_fields": dict(stored.region_fields), "flushed": flushed}

    def show() -> None:
        values = ", ".join(f"{name}={value.hex()}" for name, value in stored.region_fields)
        print_fields([*fields.items(), ("region_fields", values or None)])
        if flushed:
            header = [name.replace("_", " ") for name in _FLUSHED_FIELDS]
            print_table(header, [list(item.values()) for item in flushed])

    return Output(value, show)


@app.command()
def wal(
    table: Table,
    region: RegionId,
    position: Annotated[
        int | None, Argument(min=1, metavar="POSITION", help="By default the newest.")
    ] = None,
    rows: Annotated[int, Option(min=0, metavar="N", help="Rows to show.")] = 10,
) -> Output:
    """Show one entry of a region's write-ahead log.

    An entry whose bytes do not match its checksum is an error. Other clients write no checksum.
    """
    from memwal.format.paths import wal_key
    from memwal.format.wal_entry import decode_entry

    if position is None:
        position = _newest_position(table, region)
    key = wal_key(region, position)
    try:
        data = table.location.store.get(key)
    except ObjectNotFoundError as error:
        raise InvalidInputError(
            f"region {region} has no log entry at position {position}: it was not written yet, "
            "or was collected"
        ) from error
    entry = decode_entry(data, name=key)
    first = _first_rows(entry.batches, rows)
    fields: dict[str, object] = {
        "region_id": region,
        "position": position,
        "writer_epoch": entry.writer_epoch,
        "generation": entry.generation,
        "sentinel": entry.is_sentinel,
        "writer_id": entry.writer_id,
        "checksum": "ok" if entry.writer_id is not None else "none",
        "bytes": len(data),
        "rows": sum(batch.num_rows for batch in entry.batches),
    }

    def show() -> None:
        print_fields(fields.items())
        if first:
            cells = [[truncated(value) for value in row.values()] for row in first]
            print_table(list(first[0]), cells)

    return Output({**fields, "first_rows": first}, show)


@app.command()
def details(
    table: Table,
    version: Annotated[
        int | None, Option(min=1, metavar="N", help="Version of the table; by default the latest.")
    ] = None,
) -> Output:
    """Show the details of the table's MemWAL index: specs, merge progress, catch-up."""
    from memwal.base_table.snapshot import open_base
    from memwal.lsm.indexes.catchup import maintained_index_names

    base = open_base(table.location, version=version)
    base.require_mem_wal()
    stored = base.details
    names = {field_id: name for name, field_id in base.field_ids().items()}
    taken = stored.snapshot_ts_millis
    fields: dict[str, object] = {
        "uri": table.uri,
        "version": base.version,
        "primary_key": list(base.primary_key),
        "region_specs": {spec.spec_id: _format_spec(spec, names) for spec in stored.region_specs},
        "maintained_indexes": list(maintained_index_names(base)),
        "maintain_all_indexes": stored.maintain_all_indexes,
        "snapshot_taken": datetime.fromtimestamp(taken / 1000, UTC) if taken else None,
        "num_regions": stored.num_regions,
        "snapshot_bytes": len(stored.inline_snapshots or b""),
        "writer_config_defaults": dict(stored.writer_config_defaults),
    }
    progress = {str(region): generation for region, generation in sorted(stored.merged.items())}
    catchup = {
        name: {str(region): generation for region, generation in sorted(covered.items())}
        for name, covered in sorted(stored.catchup.items())
    }

    def show() -> None:
        print_fields((name, _joined(value)) for name, value in fields.items())
        if not progress:
            print_line("nothing was merged yet")
            return
        print_table(
            ("region", "merged to", *(f"{name} caught up to" for name in catchup)),
            [
                (region, generation, *(covered.get(region, 0) for covered in catchup.values()))
                for region, generation in progress.items()
            ],
        )

    return Output({**fields, "merged": progress, "catchup": catchup}, show)


def _read_manifest(table: Table, region: UUID, version: int | None = None) -> RegionManifest:
    from memwal.region.manifest_store import RegionManifestStore

    manifests = RegionManifestStore(table.location.store, region)
    if version is None:
        latest = manifests.read_latest()
        if latest is None:
            raise InvalidInputError(
                f"{table.uri} has no region {region}; memwal status lists those that were claimed"
            )
        return latest
    try:
        return manifests.read(version)
    except ObjectNotFoundError as error:
        raise InvalidInputError(
            f"the manifest of region {region} has no version {version}: it was not written yet, "
            "or was collected"
        ) from error


def _newest_position(table: Table, region: UUID) -> int:
    from memwal.lsm.wal.log import find_tip

    latest = _read_manifest(table, region)
    start = latest.last_logged + 1
    newest = find_tip(table.location.store, region, start=start) - 1
    if newest < 1:
        raise InvalidInputError(f"the log of region {region} has no entry yet")
    return newest


def _first_rows(batches: Sequence[pa.RecordBatch], count: int) -> list[dict[str, object]]:
    import pyarrow as pa

    from memwal.format.values import to_python_rows

    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    return to_python_rows(table.slice(0, min(count, table.num_rows)))


def _format_spec(stored: StoredRegionSpec, names: Mapping[int, str]) -> str:
    from memwal.region.spec import RegionSpec

    try:
        return str(RegionSpec.from_stored(stored, names))
    except MemWalError as error:
        return f"not usable: {error}"


def _joined(value: object) -> object:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or None
    return ", ".join(value) or None if isinstance(value, list) else value
