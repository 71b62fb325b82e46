"""Data Docs: HTML pages that Great Expectations builds from results, in a folder."""

from __future__ import annotations

import html
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from memwal.errors import InvalidInputError
from memwal.quality.evaluate import check_with_gx, new_context
from memwal.quality.expectations import Expectation
from memwal.util.records import JsonObject

_SITE = "quality"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Quality result of one run, for the pages."""

    at: datetime  # aware
    run: str  # name of the run
    # ``JobResult.quality``. Its expectations are those of the suite, in the same order.
    quality: JsonObject


def build_data_docs(
    name: str, suite: Sequence[Expectation], runs: Sequence[RunResult], folder: Path
) -> Path:
    """Write the pages of the suite of a table and its results; returns the path of the first page.

    The pages show counts and keys of failing rows, and no other values of rows. The folder is
    created if it is missing; existing pages are replaced. Raises InvalidInputError if the folder
    cannot be written to, or Great Expectations does not take the suite.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"the folder {folder} cannot be made: {error.strerror}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Great Expectations may refuse arguments that the evaluation over Arrow accepts.
        check_with_gx(suite)
        _build(name, suite, runs, folder)
    return folder / "index.html"


def _build(
    name: str, suite: Sequence[Expectation], runs: Sequence[RunResult], folder: Path
) -> None:
    context = new_context()
    from great_expectations.core import ExpectationSuite
    from great_expectations.data_context.types.resource_identifiers import (
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    site: Any = {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": {
            "class_name": "TupleFilesystemStoreBackend",
            "base_directory": str(folder.absolute()),
        },
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }
    context.add_data_docs_site(site_name=_SITE, site_config=site)
    expectations: list[JsonObject] = [
        {"type": o.type, "kwargs": _escape_html(dict(o.kwargs)), "severity": o.severity.value}
        for o in suite
    ]
    gx_suite = context.suites.add(ExpectationSuite(name=name, expectations=expectations))
    identifier = ExpectationSuiteIdentifier(name)
    for run in runs:
        # Unless the suite has changed since this run.
        if [x["type"] for x in run.quality["expectations"]] == [o.type for o in suite]:
            result = _suite_result(gx_suite, run)
            key = ValidationResultIdentifier(identifier, result.meta["run_id"], "base")
            context.validation_results_store.set(key, result)
    context.build_data_docs(site_names=[_SITE])


def _suite_result(gx_suite: Any, run: RunResult) -> Any:
    from great_expectations.core import ExpectationSuiteValidationResult, RunIdentifier

    results = [
        _validation_result(expectation.configuration, values, run.quality["rows"])
        for expectation, values in zip(
            gx_suite.expectations, run.quality["expectations"], strict=True
        )
    ]
    met = sum(bool(result.success) for result in results)
    return ExpectationSuiteValidationResult(
        success=met == len(results),
        results=results,
        suite_name=gx_suite.name,
        suite_parameters={},
        statistics={
            "evaluated_expectations": len(results),
            "successful_expectations": met,
            "unsuccessful_expectations": len(results) - met,
            "success_percent": 100 * met / len(results) if results else 100.0,
        },
        meta={
            "run_id": RunIdentifier(run_name=_escape_html(run.run), run_time=run.at),
            "batch_spec": {},
            "active_batch_definition": {},
            "validation_time": run.at.isoformat(),
        },
    )


def _escape_html(value: Any) -> Any:
    """Escape all texts in a value, since the pages show some of them unescaped.

    The texts come from the author of the table or suite. Texts that Great Expectations escapes
    itself are escaped twice.
    """
    match value:
        case str():
            return html.escape(value)
        case list():
            return [_escape_html(item) for item in value]
        case dict():
            return {_escape_html(key): _escape_html(item) for key, item in value.items()}
    return value


def _validation_result(configuration: Any, values: JsonObject, rows: int) -> Any:
    from great_expectations.core import ExpectationValidationResult

    failed = values["failed"]
    result: JsonObject = {"element_count": rows}
    if failed:
        result |= {
            "unexpected_count": failed,
            "unexpected_percent": 100 * failed / rows,
            "unexpected_percent_total": 100 * failed / rows,
            # Great Expectations shows values here; keys tell where the failing rows are, no more.
            "partial_unexpected_list": [_escape_html(str(key)) for key in values["examples"]],
        }
    return ExpectationValidationResult(
        success=values["success"],
        expectation_config=configuration,
        result=result,
        meta={},
        exception_info={
            "raised_exception": values["error"] is not None,
            "exception_message": _escape_html(values["error"]),
            "exception_traceback": "",
        },
    )
