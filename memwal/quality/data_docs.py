"""Data Docs: the pages that Great Expectations makes of results, in a folder."""

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

_SITE = "quality"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A result to show.

    Attributes
    ----------
    at : datetime
        Aware.
    run : str
        Name of the run.
    quality : dict
        As of ``JobResult.quality``, whose expectations are those of the suite, in its order.
    """

    at: datetime
    run: str
    quality: dict[str, Any]


def build_data_docs(
    name: str, suite: Sequence[Expectation], found: Sequence[Found], folder: Path
) -> Path:
    """Write the pages of a suite and of what was found, and return the first one.

    They show numbers, and keys of failing rows; no other values of rows. The folder is made if need
    be; pages that are there already are replaced.

    Parameters
    ----------
    name : str
        Of the table.

    Raises
    ------
    TableSetupError
        Great Expectations is not installed.
    InvalidInputError
        The folder cannot be written to, or Great Expectations does not take the suite.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"the folder {folder} cannot be made: {error.strerror}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # What is decided here and not by Great Expectations may be more than it takes.
        check_with_gx(suite)
        _build(name, suite, found, folder)
    return folder / "index.html"


def _build(name: str, suite: Sequence[Expectation], found: Sequence[Found], folder: Path) -> None:
    context = new_context()
    from great_expectations.core import (
        ExpectationSuite,
        ExpectationSuiteValidationResult,
        RunIdentifier,
    )
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
    known = context.suites.add(
        ExpectationSuite(
            name=name,
            expectations=[
                {"type": o.type, "kwargs": _shown(dict(o.kwargs)), "severity": o.severity.value}
                for o in suite
            ],
        )
    )
    identifier = ExpectationSuiteIdentifier(name)
    for one in found:
        if [x["type"] for x in one.quality["expectations"]] != [o.type for o in suite]:
            # Of a suite that has been changed since.
            continue
        run = RunIdentifier(run_name=_shown(one.run), run_time=one.at)
        results = [
            _result(expectation.configuration, values, one.quality["rows"])
            for expectation, values in zip(
                known.expectations, one.quality["expectations"], strict=True
            )
        ]
        met = sum(bool(result.success) for result in results)
        context.validation_results_store.set(
            ValidationResultIdentifier(identifier, run, "base"),
            ExpectationSuiteValidationResult(
                success=met == len(results),
                results=results,
                suite_name=name,
                suite_parameters={},
                statistics={
                    "evaluated_expectations": len(results),
                    "successful_expectations": met,
                    "unsuccessful_expectations": len(results) - met,
                    "success_percent": 100 * met / len(results) if results else 100.0,
                },
                meta={
                    "run_id": run,
                    "batch_spec": {},
                    "active_batch_definition": {},
                    "validation_time": one.at.isoformat(),
                },
            ),
        )
    context.build_data_docs(site_names=[_SITE])


def _shown(value: Any) -> Any:
    """A value whose texts are no HTML: the pages show some of them as they are.

    Columns and values are named by whoever made the table or the suite. Where Great Expectations
    escapes them itself, they are escaped twice.
    """
    match value:
        case str():
            return html.escape(value)
        case list():
            return [_shown(one) for one in value]
        case dict():
            return {_shown(key): _shown(one) for key, one in value.items()}
    return value


def _result(configuration: Any, values: dict[str, Any], rows: int) -> Any:
    from great_expectations.core import ExpectationValidationResult

    failed = values["failed"]
    result: dict[str, Any] = {"element_count": rows}
    if failed:
        result |= {
            "unexpected_count": failed,
            "unexpected_percent": 100 * failed / rows,
            "unexpected_percent_total": 100 * failed / rows,
            # The column of values: keys, so that nobody learns more than where to look.
            "partial_unexpected_list": [_shown(str(key)) for key in values["examples"]],
        }
    return ExpectationValidationResult(
        success=values["success"],
        expectation_config=configuration,
        result=result,
        meta={},
        exception_info={
            "raised_exception": values["error"] is not None,
            "exception_message": _shown(values["error"]),
            "exception_traceback": None,
        },
    )
