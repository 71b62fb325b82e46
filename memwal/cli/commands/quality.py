"""``memwal quality``: expectations of a table, and its rows in quarantine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from memwal.cli.options import AsJson, CatalogUrl, Name, open_catalog
from memwal.cli.output import print_fields, print_json, print_line, print_result, print_table
from memwal.errors import InvalidInputError
from memwal.jobs.options import QualityOptions
from memwal.quality.rules import read_yaml
from memwal.util.clock import duration
from memwal.util.safe_json import read_json

if TYPE_CHECKING:
    from memwal.catalog import Catalog, ManagedTable
    from memwal.jobs.job import JobResult
    from memwal.quality.quarantine import Quarantine, RowOrigin
    from memwal.quality.rules import QualityRules
    from memwal.table import Table

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Mode = Annotated[
    str | None,
    typer.Option(
        "--mode", metavar="MODE", help="Of the gate in merges: off, warn, quarantine or hold."
    ),
]
Origins = Annotated[
    list[str],
    typer.Argument(
        metavar="ROW...", help="Rows as the list shows them, REGION/FOLDER/ROW; or: all."
    ),
]


@dataclass(frozen=True, slots=True)
class _Opened:
    catalog: Catalog
    managed: ManagedTable
    table: Table
    rules: QualityRules

    @property
    def quarantine(self) -> Quarantine:
        from memwal.quality.quarantine import Quarantine

        return Quarantine.of(self.table.location, self.rules.quarantine_uri)


@contextmanager
def _opened(name: str, url: str | None) -> Iterator[_Opened]:
    from memwal.fleet.tables import open_managed
    from memwal.quality.rules import QualityRules

    with open_catalog(url) as catalog:
        managed = catalog.get(name)
        rules = managed.policy.quality or QualityRules()
        yield _Opened(catalog, managed, open_managed(managed), rules)


@app.callback()
def quality() -> None:
    """Say what the rows of a table must be like, and look after those that are not."""


@app.command()
def propose(
    name: Name,
    sample_rows: Annotated[
        int, typer.Option(min=1, metavar="N", help="Rows to look at, chosen at random.")
    ] = 100_000,
    url: CatalogUrl = None,
) -> None:
    """Print a suite that the base table meets, as JSON: look it over, then set it."""
    from memwal.quality.profile import propose_suite

    with _opened(name, url) as opened:
        suite = propose_suite(opened.table.location, sample_rows=sample_rows)
    print_line(
        json.dumps({"name": name, "expectations": [one.to_dict() for one in suite]}, indent=2)
    )


@app.command(name="set")
def set_rules(
    name: Name,
    suite: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="Suite of Great Expectations as JSON or YAML; absent: as it is."
        ),
    ] = None,
    mode: Mode = None,
    quarantine_uri: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Where rows go that are kept out; none: beside the table"),
    ] = None,
    check_seconds: Annotated[
        float | None, typer.Option(min=0, metavar="N", help="Check so often; 0: by hand only.")
    ] = None,
    sample_rows: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Check so many rows; 0: all.")
    ] = None,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Set the suite of a table, and what a merge does about rows that fail it."""
    from memwal.quality.expectations import check_columns, read_suite

    with _opened(name, url) as opened:
        changes: dict[str, Any] = {}
        if suite is not None:
            found = read_suite(_read(suite))
            check_columns(found, opened.table.schema)
            theirs = [one for one in found if not one.rule.in_arrow]
            if theirs:
                from memwal.quality.evaluate import check_with_gx

                check_with_gx(theirs)
            changes["suite"] = found
            changes["mode"] = opened.rules.mode if opened.rules.gates else "warn"
        for key, value, nothing in (
            ("mode", mode, None),
            ("quarantine_uri", quarantine_uri, "none"),
            ("check_schedule_seconds", check_seconds, 0),
            ("check_sample_rows", sample_rows, 0),
        ):
            if value is not None:
                changes[key] = None if value == nothing else value
        if not changes:
            raise InvalidInputError("nothing to change was given; see memwal quality set --help")
        rules: QualityRules = replace(opened.rules, **changes)
        opened.catalog.update(name, policy=replace(opened.managed.policy, quality=rules))
    _show(rules, as_json=as_json)


@app.command()
def rules(name: Name, url: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Show what the rows of a table must be like."""
    from memwal.quality.rules import QualityRules

    with open_catalog(url) as catalog:
        found = catalog.get(name).policy.quality or QualityRules()
    _show(found, as_json=as_json)


@app.command()
def check(
    name: Name,
    whole: Annotated[bool, typer.Option("--whole", help="All rows, and not a sample.")] = False,
    if_due: Annotated[
        bool, typer.Option("--if-due", help="Only when its check_schedule_seconds have passed.")
    ] = False,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Hold the rows of the base table against its suite, and record what was found.

    Rows that fail it are told of; the command fails only when it could not look.
    """
    from memwal.fleet import JobRequest, JobSpec, Runtime, Skipped, run_job
    from memwal.jobs.job import Guard
    from memwal.jobs.table.quality_check import check_quality

    with _opened(name, url) as opened:

        def all_rows(spec: JobSpec, guard: Guard) -> JobResult:
            guard()
            options = cast(QualityOptions, spec.options)
            return check_quality(opened.table.location, replace(options, sample_rows=None))

        found = run_job(
            opened.catalog,
            JobRequest(name, "quality", force=not if_due),
            runtime=Runtime(execute=all_rows if whole else None),
        )
    if not isinstance(found, Skipped):
        print_result(found, as_json=as_json)
    elif as_json:
        print_json(found.to_dict())
    else:
        print_line(str(found))


@app.command(name="list")
def list_rows(name: Name, url: CatalogUrl = None, as_json: AsJson = False) -> None:
    """List the rows that wait in quarantine: their keys, and why they do."""
    from memwal.quality.quarantine import describe_rows
    from memwal.quarantine_review import waiting_rows

    with _opened(name, url) as opened:
        rows = waiting_rows(opened.table, opened.quarantine)
        found = describe_rows(rows, opened.table.primary_key)
    if as_json:
        print_json(found)
        return
    print_table(
        ("row", "since", "key", "why"),
        [(one["origin"], one["at"][:19], _line(one["key"]), one["reason"]) for one in found],
    )


@app.command()
def show(name: Name, row: Origins, url: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Show rows in quarantine with all their values."""
    from memwal.quality.quarantine import describe_rows

    with _opened(name, url) as opened:
        rows = opened.quarantine.read(state=None, origins=_chosen(row, opened))
        found = describe_rows(rows, opened.table.primary_key, values=True)
    if as_json:
        print_json(found)
        return
    for one in found:
        print_fields([(key, one[key]) for key in ("origin", "at", "state", "reason")])
        print_fields([(f"  {key}", value) for key, value in one["row"].items()])


@app.command()
def release(
    name: Name,
    row: Origins,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also rows that would be kept out again, or lose values."),
    ] = False,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write rows to the table again. They replace what their keys have now."""
    from memwal.quarantine_review import release as release_rows

    with _opened(name, url) as opened:
        done = release_rows(
            opened.table,
            opened.quarantine,
            _chosen(row, opened),
            rules=None if force else opened.rules,
        )
    if as_json:
        failing = {str(origin): list(why) for origin, why in done.failing.items()}
        print_json({"released": [str(origin) for origin in done.released], "failing": failing})
        return
    print_line(f"{len(done.released)} rows were written again; the next merge takes them in")
    for origin, why in done.failing.items():
        print_line(f"{origin} still fails: {'; '.join(why)}")


@app.command()
def discard(name: Name, row: Origins, url: CatalogUrl = None, as_json: AsJson = False) -> None:
    """Say that rows in quarantine are not wanted."""
    from memwal.quarantine_review import discard as discard_rows

    with _opened(name, url) as opened:
        count = discard_rows(opened.quarantine, _chosen(row, opened))
    _count("discarded", count, as_json=as_json)


@app.command()
def purge(
    name: Name,
    older_than_days: Annotated[
        float, typer.Option(min=0, metavar="DAYS", help="Kept out longer ago than this.")
    ] = 30.0,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete rows from the quarantine that were released or discarded."""
    with _opened(name, url) as opened:
        before = datetime.now(UTC) - duration(86_400 * older_than_days, "--older-than-days")
        count = opened.quarantine.purge(before=before)
    _count("deleted", count, as_json=as_json)


@app.command()
def docs(
    name: Name,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the pages go.")],
    runs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Show so many runs, the latest.")
    ] = 20,
    url: CatalogUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write pages of what merges and checks found: the Data Docs of Great Expectations."""
    from memwal.quality.data_docs import RunResult, build_data_docs
    from memwal.quality.rules import QualityRules

    with open_catalog(url) as catalog:
        rules = catalog.get(name).policy.quality or QualityRules()
        known = [run for run in catalog.runs(table=name) if (run.result or {}).get("quality")]
    found = [
        RunResult(
            at=run.finished_at or run.started_at,
            run=f"{run.job} {run.run_id}",
            quality=(run.result or {})["quality"],
        )
        for run in known[:runs]
    ]
    page = build_data_docs(name, rules.suite, found, folder)
    if as_json:
        print_json({"page": str(page), "runs": len(found)})
    else:
        print_line(f"{len(found)} runs are shown by {page}")


def _read(file: Path) -> Any:
    """The suite in a file: YAML by its name, else JSON."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"the suite {file} cannot be read: {error}") from error
    if file.suffix.lower() not in (".yaml", ".yml"):
        try:
            return read_json(text)
        except ValueError as error:
            raise InvalidInputError(f"the suite {file} is not JSON: {error}") from error
    try:
        return read_yaml(text)
    except ValueError as error:
        raise InvalidInputError(f"the suite {file} is not YAML: {error}") from error


def _chosen(rows: list[str], opened: _Opened) -> list[RowOrigin]:
    from memwal.quality.quarantine import RowOrigin, origins_of
    from memwal.quarantine_review import waiting_rows

    if rows == ["all"]:
        return origins_of(waiting_rows(opened.table, opened.quarantine))
    return [RowOrigin.parse(row) for row in rows]


def _show(rules: QualityRules, *, as_json: bool) -> None:
    if as_json:
        print_json(rules.to_dict())
        return
    shown = rules.to_dict()
    print_fields((key, shown[key]) for key in shown if key != "suite")
    print_table(
        ("expectation", "columns", "severity", "kind"),
        [(o.type, ", ".join(o.columns), o.severity.value, o.kind.value) for o in rules.suite],
    )


def _count(what: str, count: int, *, as_json: bool) -> None:
    if as_json:
        print_json({what: count})
    else:
        print_line(f"{count} rows were {what}")


def _line(key: dict[str, Any]) -> str:
    return ", ".join(map(str, key.values()))
