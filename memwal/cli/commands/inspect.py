"""``memwal inspect``: show stored manifests, log entries and MemWAL index details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from memwal.cli.options import AsJson, OptionPairs, OptionsFile, RegionId, Uri, open_table
from memwal.cli.output import print_fields, print_json, print_line, print_table
from memwal.errors import InvalidInputError, MemWalError, ObjectNotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

    from memwal.format.memwal_index import StoredRegionSpec
    from memwal.format.region_manifest import RegionManifest
    from memwal.table import Table

_SHOWN_TEXT = 40

app = typer.Typer(no_args_is_help=True, help="Show what is stored: manifests, log, details.")


@app.command()
def manifest(
    table: Uri,
    region: RegionId,
    version: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Version; by default the newest.")
    ] = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Show the manifest of a region."""
    opened = open_table(table, storage_options_file, storage_option)
    found = _manifest(opened, region, version)
    generations = [
        {
            "generation": flushed.generation,
            "path": flushed.path,
            "rows": flushed.rows,
            "memory_bytes": flushed.memory_bytes,
            "key_bytes": flushed.key_bytes,
        }
        for flushed in found.flushed
    ]
    fields: dict[str, Any] = {
        "region_id": found.region_id,
        "version": found.version,
        "writer_epoch": found.writer_epoch,
        "status": getattr(found.status, "name", str(found.status)).lower(),
        "current_generation": found.current_generation,
        "replay_after": found.replay_after,
        "wal_last_seen": found.wal_last_seen,
        "spec_id": found.spec_id,
        "region_fields": dict(found.region_fields),
    }
    if as_json:
        print_json({**fields, "flushed": generations})
        return
    fields["region_fields"] = (
        ", ".join(f"{name}={value.hex()}" for name, value in found.region_fields) or None
    )
    print_fields(fields.items())
    if generations:
        print_table(
            ("generation", "path", "rows", "memory bytes", "key bytes"),
            [tuple(generation.values()) for generation in generations],
        )


@app.command()
def wal(
    table: Uri,
    region: RegionId,
    position: Annotated[
        int | None, typer.Argument(min=1, metavar="POSITION", help="By default the newest.")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, metavar="N", help="Rows to show.")] = 10,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Show one entry of a region's write-ahead log.

    An entry whose bytes do not match its checksum is an error. Other clients write none.
    """
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.format.paths import wal_key
    from memwal.format.wal_entry import decode_entry

    at = position if position is not None else _newest_position(opened, region)
    key = wal_key(region, at)
    try:
        data = opened.location.store.get(key)
    except ObjectNotFoundError as error:
        raise InvalidInputError(
            f"region {region} has no log entry at position {at}: it was not written yet, "
            "or was collected"
        ) from error
    entry = decode_entry(data, name=key)
    first = _first_rows(entry.batches, rows)
    fields: dict[str, Any] = {
        "region_id": region,
        "position": at,
        "writer_epoch": entry.writer_epoch,
        "generation": entry.generation,
        "sentinel": entry.is_sentinel,
        "writer_id": entry.writer_id,
        "checksum": "ok" if entry.writer_id is not None else "none",
        "bytes": len(data),
        "rows": sum(batch.num_rows for batch in entry.batches),
    }
    if as_json:
        print_json({**fields, "first_rows": first})
        return
    print_fields(fields.items())
    if first:
        print_table(list(first[0]), [[_short(value) for value in row.values()] for row in first])


@app.command()
def details(
    table: Uri,
    version: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Version of the table; by default the latest."),
    ] = None,
    storage_options_file: OptionsFile = None,
    storage_option: OptionPairs = None,
    as_json: AsJson = False,
) -> None:
    """Show the details of the table's MemWAL index: specs, merge progress, catch-up."""
    opened = open_table(table, storage_options_file, storage_option)
    from memwal.base_table.snapshot import open_base
    from memwal.lsm.indexes.catchup import maintained_index_names

    base = open_base(opened.location, version=version)
    base.require_mem_wal()
    found = base.details
    names = {field_id: name for name, field_id in base.field_ids().items()}
    taken = found.snapshot_ts_millis
    fields: dict[str, Any] = {
        "uri": opened.uri,
        "version": base.version,
        "primary_key": list(base.primary_key),
        "region_specs": {spec.spec_id: _spec(spec, names) for spec in found.region_specs},
        "maintained_indexes": list(maintained_index_names(base)),
        "maintain_all_indexes": found.maintain_all_indexes,
        "snapshot_taken": datetime.fromtimestamp(taken / 1000, UTC) if taken else None,
        "snapshot_regions": found.num_regions,
        "snapshot_bytes": len(found.inline_snapshots or b""),
        "writer_config_defaults": dict(found.writer_config_defaults),
    }
    progress = {str(region): generation for region, generation in sorted(found.merged.items())}
    catchup = {
        name: {str(region): generation for region, generation in sorted(covered.items())}
        for name, covered in sorted(found.catchup.items())
    }
    if as_json:
        print_json({**fields, "merged": progress, "catchup": catchup})
        return
    print_fields((name, _listed(value)) for name, value in fields.items())
    if progress:
        print_table(
            ("region", "merged to", *(f"{name} caught up to" for name in catchup)),
            [
                (region, generation, *(covered.get(region, 0) for covered in catchup.values()))
                for region, generation in progress.items()
            ],
        )
    else:
        print_line("nothing was merged yet")


def _manifest(table: Table, region: UUID, version: int | None = None) -> RegionManifest:
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

    latest = _manifest(table, region)
    start = max(latest.replay_after, latest.wal_last_seen) + 1
    newest = find_tip(table.location.store, region, start=start) - 1
    if newest < 1:
        raise InvalidInputError(f"the log of region {region} has no entry yet")
    return newest


def _first_rows(batches: Sequence[pa.RecordBatch], count: int) -> list[dict[str, Any]]:
    import pyarrow as pa

    from memwal.format.values import to_python_rows

    if not batches:
        return []
    table = pa.Table.from_batches(batches)
    return to_python_rows(table.slice(0, min(count, table.num_rows)))


def _short(value: Any) -> Any:
    text = str(value)
    return value if len(text) <= _SHOWN_TEXT else f"{text[: _SHOWN_TEXT - 3]}..."


def _spec(stored: StoredRegionSpec, names: Mapping[int, str]) -> str:
    from memwal.region.spec import RegionSpec

    try:
        return str(RegionSpec.from_stored(stored, names))
    except MemWalError as error:
        return f"not usable: {error}"


def _listed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or None
    return ", ".join(value) or None if isinstance(value, list) else value
