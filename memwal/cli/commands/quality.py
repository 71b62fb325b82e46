"""``memwal quality``: expectations of a table, and its rows in quarantine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Argument, Option

from memwal.cli.options import CatalogUrl, Name, open_catalog
from memwal.cli.output import Output, job_output, print_fields, print_line, print_table, table_of
from memwal.cli.parameters import CommandGroup
from memwal.errors import InvalidInputError
from memwal.jobs.job import Guard, JobResult
from memwal.jobs.options import QualityOptions
from memwal.quality.expectations import check_columns, read_suite
from memwal.quality.rules import QualityRules, read_yaml
from memwal.util.clock import duration
from memwal.util.records import JsonMapping
from memwal.util.safe_json import read_json

if TYPE_CHECKING:
    from memwal.catalog import Catalog, ManagedTable
    from memwal.quality.quarantine import Quarantine, RowOrigin
    from memwal.table import Table

app = CommandGroup()

Mode = Annotated[
    str | None,
    Option("--mode", metavar="MODE", help="Of the gate in merges: off, warn, quarantine or hold."),
]
Origins = Annotated[
    list[str],
    Argument(metavar="ROW...", help="Rows as the list shows them, REGION/FOLDER/ROW; or: all."),
]


@dataclass(frozen=True, slots=True)
class _OpenedRules:
    catalog: Catalog
    managed: ManagedTable
    table: Table
    rules: QualityRules

    @property
    def quarantine(self) -> Quarantine:
        from memwal.quality.quarantine import Quarantine

        return Quarantine.of(self.table.location, self.rules.quarantine_uri)


@contextmanager
def _opened(name: str, url: str | None) -> Iterator[_OpenedRules]:
    from memwal.fleet.tables import open_managed

    with open_catalog(url) as catalog:
        managed = catalog.get(name)
        rules = managed.policy.quality or QualityRules()
        yield _OpenedRules(catalog, managed, open_managed(managed), rules)


@app.callback()
def quality() -> None:
    """Define which rows a table accepts, and handle those in quarantine."""


@app.command()
def propose(
    name: Name,
    sample_rows: Annotated[
        int, Option(min=1, metavar="N", help="Rows to read, chosen at random.")
    ] = 100_000,
    url: CatalogUrl = None,
) -> None:
    """Print a suite that the base table meets, as JSON: review it, then set it."""
    from memwal.quality.profile import propose_suite

    with _opened(name, url) as opened:
        suite = propose_suite(opened.table.location, sample_rows=sample_rows)
    expectations = [expectation.to_dict() for expectation in suite]
    print_line(json.dumps({"name": name, "expectations": expectations}, indent=2))


@app.command(name="set")
def set_rules(
    name: Name,
    suite: Annotated[
        Path | None,
        Argument(
            metavar="[FILE]", help="Suite of Great Expectations, JSON or YAML; absent: unchanged."
        ),
    ] = None,
    mode: Mode = None,
    quarantine_uri: Annotated[
        str | None, Option(metavar="URI", help="Address of the quarantine; none: beside the table.")
    ] = None,
    check_seconds: Annotated[
        float | None, Option(min=0, metavar="N", help="Time between checks; 0: no schedule.")
    ] = None,
    sample_rows: Annotated[
        int | None, Option(min=0, metavar="N", help="Rows of a check; 0: all.")
    ] = None,
    url: CatalogUrl = None,
) -> Output:
    """Set the suite of a table, and how a merge treats rows that fail it."""
    with _opened(name, url) as opened:
        changes: dict[str, Any] = {}
        if suite is not None:
            expectations = read_suite(read_suite_file(suite))
            check_columns(expectations, opened.table.schema)
            checked_by_gx = [item for item in expectations if not item.rule.in_arrow]
            if checked_by_gx:
                from memwal.quality.evaluate import check_with_gx

                check_with_gx(checked_by_gx)
            changes["suite"] = expectations
            changes["mode"] = opened.rules.mode if opened.rules.gates else "warn"
        for key, value, unset in (
            ("mode", mode, None),
            ("quarantine_uri", quarantine_uri, "none"),
            ("check_schedule_seconds", check_seconds, 0),
            ("check_sample_rows", sample_rows, 0),
        ):
            if value is not None:
                changes[key] = None if value == unset else value
        if not changes:
            raise InvalidInputError("nothing to change was given; see memwal quality set --help")
        rules: QualityRules = replace(opened.rules, **changes)
        opened.catalog.update(name, policy=replace(opened.managed.policy, quality=rules))
    return _rules_output(rules)


@app.command()
def rules(name: Name, catalog: Catalog) -> Output:
    """Show the rules for the rows of a table."""
    return _rules_output(catalog.get(name).policy.quality or QualityRules())


@app.command()
def check(
    name: Name,
    whole: Annotated[bool, Option("--whole", help="All rows, and not a sample.")] = False,
    if_due: Annotated[bool, Option("--if-due", help="Only after check_schedule_seconds.")] = False,
    url: CatalogUrl = None,
) -> Output:
    """Check the rows of the base table against its suite, and record the result.

    Rows that fail the suite are in the result; the command fails only when it could not check.
    """
    from memwal.fleet import JobRequest, JobSpec, Runtime, run_job
    from memwal.jobs.table.quality_check import check_quality

    with _opened(name, url) as opened:

        def all_rows(spec: JobSpec, guard: Guard) -> JobResult:
            guard()
            options = cast(QualityOptions, spec.options)
            return check_quality(opened.table.location, replace(options, sample_rows=None))

        request = JobRequest(name, "quality", force=not if_due)
        runtime = Runtime(execute=all_rows if whole else None)
        outcome = run_job(opened.catalog, request, runtime=runtime)
    return job_output(outcome)


@app.command(name="list")
def list_rows(name: Name, url: CatalogUrl = None) -> Output:
    """List the rows in quarantine: their keys, and why they are there."""
    from memwal.quality.quarantine import describe_rows
    from memwal.quarantine_review import waiting_rows

    with _opened(name, url) as opened:
        waiting = waiting_rows(opened.table, opened.quarantine)
        rows = describe_rows(waiting, opened.table.base().key_or_column)
    cells = [
        (r["origin"], r["at"][:19], ", ".join(map(str, r["key"].values())), r["reason"])
        for r in rows
    ]
    return Output(rows, table_of(("row", "since", "key", "why"), cells))


@app.command()
def show(name: Name, row: Origins, url: CatalogUrl = None) -> Output:
    """Show rows in quarantine with all their values."""
    from memwal.quality.quarantine import describe_rows

    with _opened(name, url) as opened:
        stored = opened.quarantine.read(state=None, origins=_origins(row, opened))
        rows = describe_rows(stored, opened.table.base().key_or_column, values=True)
    return Output(rows, partial(_print_rows, rows))


def _print_rows(rows: Sequence[JsonMapping]) -> None:
    for described in rows:
        print_fields([(key, described[key]) for key in ("origin", "at", "state", "reason")])
        print_fields([(f"  {key}", value) for key, value in described["row"].items()])


@app.command()
def release(
    name: Name,
    row: Origins,
    force: Annotated[
        bool, Option("--force", help="Also rows that would be kept out again, or lose values.")
    ] = False,
    url: CatalogUrl = None,
) -> Output:
    """Write rows to the table again. They replace the present values of their keys."""
    from memwal.quarantine_review import release as release_rows

    with _opened(name, url) as opened:
        rules = None if force else opened.rules
        origins = _origins(row, opened)
        release = release_rows(opened.table, opened.quarantine, origins, rules=rules)
    lines = [
        f"{len(release.released)} rows were written again; the next merge takes them in",
        *(f"{row} still fails: {'; '.join(reasons)}" for row, reasons in release.failing.items()),
    ]
    released = [str(origin) for origin in release.released]
    return Output({"released": released, "failing": release.failing}, "\n".join(lines))


@app.command()
def discard(name: Name, row: Origins, url: CatalogUrl = None) -> Output:
    """Mark rows in quarantine as discarded."""
    from memwal.quarantine_review import discard as discard_rows

    with _opened(name, url) as opened:
        count = discard_rows(opened.quarantine, _origins(row, opened))
    return Output({"discarded": count}, f"{count} rows were discarded")


@app.command()
def purge(
    name: Name,
    older_than_days: Annotated[
        float, Option(min=0, metavar="DAYS", help="Only rows that are there for longer.")
    ] = 30.0,
    url: CatalogUrl = None,
) -> Output:
    """Delete rows that were released or discarded, if their generation is collected."""
    from memwal.region.manifest_store import read_manifests

    with _opened(name, url) as opened:
        before = datetime.now(UTC) - duration(86_400 * older_than_days, "--older-than-days")
        manifests = read_manifests(opened.table.location.store).values()
        stored = {flushed.path for manifest in manifests for flushed in manifest.flushed}
        count = opened.quarantine.purge(before=before, stored=stored)
    return Output({"deleted": count}, f"{count} rows were deleted")


@app.command()
def docs(
    name: Name,
    folder: Annotated[Path, Argument(metavar="FOLDER", help="Folder for the pages.")],
    runs: Annotated[int, Option(min=1, metavar="N", help="Number of latest runs.")] = 20,
    *,
    catalog: Catalog,
) -> Output:
    """Write the results of merges and checks as Data Docs of Great Expectations."""
    from memwal.quality.data_docs import RunResult, build_data_docs

    rules = catalog.get(name).policy.quality or QualityRules()
    checked = [run for run in catalog.runs(table=name) if (run.result or {}).get("quality")]
    results = [
        RunResult(
            at=run.finished_at or run.started_at,
            run=f"{run.job} {run.run_id}",
            quality=(run.result or {})["quality"],
        )
        for run in checked[:runs]
    ]
    page = build_data_docs(name, rules.suite, results, folder)
    value = {"page": str(page), "runs": len(results)}
    return Output(value, f"{len(results)} runs are shown by {page}")


def read_suite_file(file: Path) -> object:
    """Read a suite from a file: YAML by its name, else JSON."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"the suite {file} cannot be read: {error}") from error
    is_yaml = file.suffix.lower() in (".yaml", ".yml")
    try:
        return read_yaml(text) if is_yaml else read_json(text)
    except ValueError as error:
        form = "YAML" if is_yaml else "JSON"
        raise InvalidInputError(f"the suite {file} is not {form}: {error}") from error


def _origins(rows: list[str], opened: _OpenedRules) -> list[RowOrigin]:
    from memwal.quality.quarantine import RowOrigin, origins_of
    from memwal.quarantine_review import waiting_rows

    if rows == ["all"]:
        return origins_of(waiting_rows(opened.table, opened.quarantine))
    return [RowOrigin.parse(row) for row in rows]


def _rules_output(rules: QualityRules) -> Output:
    return Output(rules, partial(_print_rules, rules))


def _print_rules(rules: QualityRules) -> None:
    print_fields((key, value) for key, value in rules.to_dict().items() if key != "suite")
    print_table(
        ("expectation", "columns", "severity", "kind"),
        [(o.type, ", ".join(o.columns), o.severity.value, o.kind.value) for o in rules.suite],
    )
