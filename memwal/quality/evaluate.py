"""Evaluate rows against a suite, over Arrow or through Great Expectations.

Importing this module does not load Great Expectations. Each function that needs it does, which
takes about six seconds.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from memwal.errors import InvalidInputError, MissingExtraError
from memwal.quality.checks import (
    ROW_CHECKS,
    UNIQUE_CHECKS,
    VECTOR_CHECKS,
    WHOLE_CHECKS,
    combine_column,
    is_vector,
    vector_failures,
)
from memwal.quality.expectations import EXPECTATION_RULES, Expectation, ExpectationKind
from memwal.util.arrays import Mask
from memwal.util.optional_deps import requires_extra
from memwal.util.records import JsonMapping, JsonObject

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.core import ExpectationValidationResult as _Result
    from great_expectations.data_context.data_context.ephemeral_data_context import (
        EphemeralDataContext,
    )


@dataclass(frozen=True, slots=True)
class ExpectationResult:
    """Result of one expectation over some rows."""

    expectation: Expectation
    success: bool  # whether it is met, with ``mostly`` taken into account
    evaluated: int  # number of evaluated values
    failed: Mask | None = None  # failing rows; None if the result is not about single rows
    # Why it could not be evaluated, without any value of the rows; it is not met then.
    error: str | None = None

    @property
    def failures(self) -> int:
        """Number of failing rows."""
        return 0 if self.failed is None else int(np.count_nonzero(self.failed))


def evaluate(suite: Sequence[Expectation], rows: pa.Table) -> list[ExpectationResult]:
    """Evaluate rows against a suite; results have the order of the suite.

    Most expectations are evaluated over Arrow. Great Expectations, which takes seconds to load, is
    loaded only for the others.
    """
    results = {
        number: _evaluate_in_arrow(expectation, rows)
        for number, expectation in enumerate(suite)
        if expectation.rule.in_arrow
    }
    rest = [number for number in range(len(suite)) if number not in results]
    if rest:
        results |= zip(
            rest, evaluate_with_gx([suite[number] for number in rest], rows), strict=True
        )
    return [results[number] for number in range(len(suite))]


def row_result(expectation: Expectation, failed: Mask, evaluated: int) -> ExpectationResult:
    """Build the result of an expectation about rows from its failing rows."""
    failures = int(np.count_nonzero(failed))
    success = not failures or (evaluated - failures) / evaluated >= expectation.mostly
    return ExpectationResult(expectation, success, evaluated, failed)


def _evaluate_in_arrow(expectation: Expectation, rows: pa.Table) -> ExpectationResult:
    kwargs, type_ = expectation.kwargs, expectation.type
    absent = [name for name in expectation.columns if name not in rows.schema.names]
    if absent and type_ != "expect_column_to_exist":
        return undecided_result(expectation, f"there is no column {', '.join(absent)}")
    try:
        if expectation.kind == ExpectationKind.WHOLE:
            return ExpectationResult(expectation, WHOLE_CHECKS[type_](rows, kwargs), rows.num_rows)
        if type_ in VECTOR_CHECKS:
            column = combine_column(rows, kwargs["column"])
            failed = vector_failures(type_, column, kwargs)
            counts_missing = type_ == "expect_vector_values_to_not_be_null"
            return row_result(
                expectation, failed, len(column) - (0 if counts_missing else column.null_count)
            )
        failed, evaluated = {**ROW_CHECKS, **UNIQUE_CHECKS}[type_](rows, kwargs)
        return row_result(expectation, failed, int(np.count_nonzero(evaluated)))
    except InvalidInputError as error:
        return undecided_result(expectation, str(error))
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
        TypeError,
    ) as error:
        # The error's text may contain a value of the rows.
        return undecided_result(
            expectation, f"the column's type does not go with it ({type(error).__name__})"
        )


def undecided_result(expectation: Expectation, why: str) -> ExpectationResult:
    """Build the result of an expectation that cannot be evaluated."""
    return ExpectationResult(expectation, False, 0, error=why)


# Contexts of Great Expectations are not thread-safe, and global.
_lock = threading.Lock()
_registered: list[type] = []


def load_gx() -> ModuleType:
    """Import Great Expectations, silent and offline, with the expectations about vectors.

    Raises MissingExtraError if it is not installed.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        # Its imports emit warnings.
        warnings.simplefilter("ignore")
        with requires_extra("quality"):
            import great_expectations as gx
        if not _registered:
            _registered.extend(_vector_classes())
    return gx


def new_context() -> EphemeralDataContext:
    """Create a context in memory, without analytics and progress bars."""
    gx = load_gx()
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    # By default each context leaves a temporary folder for Data Docs behind.
    stores = InMemoryStoreBackendDefaults(init_temp_docs_sites=False)
    context: EphemeralDataContext = gx.get_context(
        mode="ephemeral", project_config=DataContextConfig(store_backend_defaults=stores)
    )
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    return context


def check_with_gx(suite: Sequence[Expectation]) -> None:
    """Raise InvalidInputError if Great Expectations refuses an expectation or its arguments."""
    load_gx()
    from great_expectations.core import ExpectationSuite

    for expectation in suite:
        try:
            ExpectationSuite(name="checked", expectations=[_configuration(expectation, 0)])
        except Exception as error:
            # It raises errors of any type for arguments that it refuses.
            raise InvalidInputError(
                f"Great Expectations does not take {expectation}: {str(error).splitlines()[0]}"
            ) from error


def evaluate_with_gx(suite: Sequence[Expectation], rows: pa.Table) -> list[ExpectationResult]:
    """Evaluate a suite with Great Expectations over the columns that it names, without vectors."""
    columns = {column for expectation in suite for column in expectation.columns}
    # Great Expectations takes minutes to compare vectors.
    names = [f.name for f in rows.schema if f.name in columns and not is_vector(f.type)]
    # One column at least, which tells the number of rows.
    return evaluate_all_with_gx(suite, rows.select(names or rows.schema.names[:1]))


def evaluate_all_with_gx(suite: Sequence[Expectation], rows: pa.Table) -> list[ExpectationResult]:
    """Evaluate a suite with Great Expectations alone, over all columns."""
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = _validate_separately(suite, rows.to_pandas())
    return [
        _parse_result(expectation, result, rows.num_rows)
        for expectation, result in zip(suite, results, strict=True)
    ]


def _validate_separately(suite: Sequence[Expectation], frame: pd.DataFrame) -> list[_Result | None]:
    """Validate a suite; the result of an expectation that makes Great Expectations fail is None."""
    try:
        return _validate(suite, frame)
    except MissingExtraError:
        raise
    except Exception:
        # It raises errors of any type. One expectation must not stop a merge, nor the others.
        if len(suite) == 1:
            return [None]
        return [
            result for expectation in suite for result in _validate_separately([expectation], frame)
        ]


def _validate(suite: Sequence[Expectation], frame: pd.DataFrame) -> list[_Result | None]:
    context = new_context()
    from great_expectations.core import ExpectationSuite

    asset = context.data_sources.add_pandas("rows").add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    validated = batch.validate(
        ExpectationSuite(
            name="suite",
            expectations=[
                _configuration(expectation, number) for number, expectation in enumerate(suite)
            ],
        ),
        result_format={"result_format": "COMPLETE", "return_unexpected_index_query": False},
    )
    # Results come in another order than the suite.
    results: dict[int, _Result | None] = {}
    for result in validated.results:
        configuration: Any = result.expectation_config
        results[configuration.meta[_NUMBER]] = result
    return [results[number] for number in range(len(suite))]


_NUMBER = "memwal_number"


def _configuration(expectation: Expectation, number: int) -> JsonObject:
    return {
        "type": expectation.type,
        "kwargs": dict(expectation.kwargs),
        "severity": expectation.severity.value,
        # Great Expectations drops duplicates, so equal expectations must differ here.
        "meta": {_NUMBER: number},
    }


def _parse_result(expectation: Expectation, result: _Result | None, rows: int) -> ExpectationResult:
    if result is None or _has_exception(result.exception_info):
        return undecided_result(
            expectation, "Great Expectations could not decide it for a column of this type"
        )
    details = dict(result.result)
    if expectation.kind == ExpectationKind.WHOLE:
        return ExpectationResult(expectation, bool(result.success), rows)
    failed = np.zeros(rows, np.bool_)
    failed[details.get("unexpected_index_list") or []] = True
    evaluated = details.get("element_count", rows) - (details.get("missing_count") or 0)
    return row_result(expectation, failed, evaluated)


def _has_exception(info: JsonMapping) -> bool:
    if "raised_exception" in info:
        return bool(info["raised_exception"])
    return any(item.get("raised_exception") for item in info.values())


def _vector_classes() -> list[type]:
    """Define the vector expectations for Great Expectations; each registers itself.

    It shows their results in Data Docs, and never evaluates them.
    """
    from great_expectations.expectations.expectation import ColumnMapExpectation

    classes = []
    for type_ in VECTOR_CHECKS:
        rule = EXPECTATION_RULES[type_]
        keys = (*(key for key in rule.required if key != "column"), *rule.optional)
        optional = dict.fromkeys(keys, Any)
        classes.append(
            type(
                "".join(word.title() for word in type_.split("_")),
                (ColumnMapExpectation,),
                {
                    "__module__": __name__,
                    "__doc__": f"{type_.replace('_', ' ').capitalize()}.",
                    "__annotations__": optional,
                    **dict.fromkeys(keys),
                    "map_metric": f"column_values.{type_.removeprefix('expect_')}",
                    "success_keys": (*keys, "mostly"),
                    "args_keys": ("column", *keys),
                },
            )
        )
    return classes
