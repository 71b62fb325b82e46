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
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from memwal.errors import InvalidInputError, MissingExtraError
from memwal.quality.checks import (
    ROW_CHECKS,
    UNIQUE_CHECKS,
    VECTOR_CHECKS,
    WHOLE_CHECKS,
    Mask,
    is_vector,
    one_array,
    vector_failures,
)
from memwal.quality.expectations import Expectation
from memwal.quality.registry import Kind
from memwal.util.optional_deps import requires_extra

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.data_context.data_context.ephemeral_data_context import (
        EphemeralDataContext,
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one expectation.

    Attributes
    ----------
    expectation : Expectation
    success : bool
        Whether it is met, with ``mostly`` taken into account.
    looked : int
        Values that it was held against.
    failed : numpy.ndarray of bool, or None
        Of each row whether it is not as expected; None when no row is to blame.
    error : str or None
        Why it could not be decided, without any value; it is not met then.
    """

    expectation: Expectation
    success: bool
    looked: int
    failed: Mask | None = None
    error: str | None = None

    @property
    def failures(self) -> int:
        """How many rows are not as expected."""
        return 0 if self.failed is None else int(np.count_nonzero(self.failed))


def evaluate(suite: Sequence[Expectation], rows: pa.Table) -> list[Finding]:
    """Hold rows against expectations, in the order of the suite.

    Most are decided over Arrow; Great Expectations is loaded, which takes seconds, only for those
    that are not.
    """
    found = [_one(one, rows) if one.rule.own else None for one in suite]
    rest = [number for number, finding in enumerate(found) if finding is None]
    if rest:
        theirs = evaluate_with_gx([suite[number] for number in rest], rows)
        for number, finding in zip(rest, theirs, strict=True):
            found[number] = finding
    return [finding for finding in found if finding is not None]


def verdict(expectation: Expectation, failed: Mask, looked: int) -> Finding:
    """The finding for rows that fail, of so many that were looked at."""
    failures = int(np.count_nonzero(failed))
    success = not failures or (looked - failures) / looked >= expectation.mostly
    return Finding(expectation, success, looked, failed)


def _one(expectation: Expectation, rows: pa.Table) -> Finding:
    kwargs, type_ = expectation.kwargs, expectation.type
    absent = [name for name in expectation.columns if name not in rows.schema.names]
    if absent and type_ != "expect_column_to_exist":
        return undecided(expectation, f"there is no column {', '.join(absent)}")
    try:
        if expectation.kind == Kind.WHOLE:
            return Finding(expectation, WHOLE_CHECKS[type_](rows, kwargs), rows.num_rows)
        if type_ in VECTOR_CHECKS:
            column = one_array(rows, kwargs["column"])
            failed = vector_failures(type_, column, kwargs)
            counts_missing = type_ == "expect_vector_values_to_not_be_null"
            return verdict(
                expectation, failed, len(column) - (0 if counts_missing else column.null_count)
            )
        failed, looked = {**ROW_CHECKS, **UNIQUE_CHECKS}[type_](rows, kwargs)
        return verdict(expectation, failed, int(np.count_nonzero(looked)))
    except InvalidInputError as error:
        return undecided(expectation, str(error))
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
        TypeError,
    ) as error:
        # Its text may hold a value.
        return undecided(
            expectation, f"the column's type does not go with it ({type(error).__name__})"
        )


def undecided(expectation: Expectation, why: str) -> Finding:
    """The finding of an expectation that cannot be held against the rows."""
    return Finding(expectation, False, 0, error=why)


# Its contexts are not made for several threads, and their number is global.
_lock = threading.Lock()
_registered: list[Any] = []


def load_gx() -> Any:
    """Import Great Expectations, silent and offline, with the expectations about vectors.

    Raises
    ------
    MissingExtraError
        It is not installed.
    """
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings():
        # Of what it imports along the way.
        warnings.simplefilter("ignore")
        with requires_extra("quality"):
            import great_expectations as gx
        if not _registered:
            _registered.extend(_vector_classes())
    return gx


def new_context() -> EphemeralDataContext:
    """A context in memory that reports to nobody and draws no progress bars."""
    gx = load_gx()
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    # By default each context leaves a folder behind for pages that nobody asked for.
    stores = InMemoryStoreBackendDefaults(init_temp_docs_sites=False)
    context: EphemeralDataContext = gx.get_context(
        mode="ephemeral", project_config=DataContextConfig(store_backend_defaults=stores)
    )
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    return context


def check_with_gx(suite: Sequence[Expectation]) -> None:
    """Have Great Expectations read a suite, which knows more of its own arguments.

    Raises
    ------
    InvalidInputError
        It does not take one of the expectations.
    """
    from memwal.errors import InvalidInputError

    load_gx()
    from great_expectations.core import ExpectationSuite

    for one in suite:
        try:
            ExpectationSuite(name="checked", expectations=[_configuration(one, 0)])
        except Exception as error:
            # Whatever its many layers raise says that it does not take it.
            raise InvalidInputError(
                f"Great Expectations does not take {one}: {str(error).splitlines()[0]}"
            ) from error


def evaluate_with_gx(suite: Sequence[Expectation], rows: pa.Table) -> list[Finding]:
    """Hold rows against expectations by a pandas batch of the columns that they name."""
    names = [name for name in rows.schema.names if any(name in one.columns for one in suite)]
    # Vectors are left out: comparing them takes minutes.
    plain = [name for name in names if not is_vector(rows.schema.field(name).type)]
    # Something must tell how many rows there are.
    return evaluate_all_with_gx(suite, rows.select(plain or rows.schema.names[:1]))


def evaluate_all_with_gx(suite: Sequence[Expectation], rows: pa.Table) -> list[Finding]:
    """Hold rows against any expectations, also those that are decided without it otherwise."""
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = _decided(suite, rows.to_pandas())
    return [
        _finding(one, result, rows.num_rows) for one, result in zip(suite, results, strict=True)
    ]


def _decided(suite: Sequence[Expectation], frame: pd.DataFrame) -> list[Any]:
    """Of each expectation what came of it; None where Great Expectations fails itself."""
    try:
        return _validate(suite, frame)
    except MissingExtraError:
        raise
    except Exception:
        # Whatever its many layers raise about one of them must not stop a merge, nor the others.
        if len(suite) == 1:
            return [None]
        return [found for one in suite for found in _decided([one], frame)]


def _validate(suite: Sequence[Expectation], frame: pd.DataFrame) -> list[Any]:
    context = new_context()
    from great_expectations.core import ExpectationSuite

    asset = context.data_sources.add_pandas("rows").add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    validated = batch.validate(
        ExpectationSuite(
            name="suite",
            expectations=[_configuration(one, number) for number, one in enumerate(suite)],
        ),
        result_format={"result_format": "COMPLETE", "return_unexpected_index_query": False},
    )
    # In an order of its own.
    found: dict[int, Any] = {}
    for result in validated.results:
        configuration: Any = result.expectation_config
        found[configuration.meta[_NUMBER]] = result
    return [found[number] for number in range(len(suite))]


_NUMBER = "memwal_number"


def _configuration(one: Expectation, number: int) -> dict[str, Any]:
    return {
        "type": one.type,
        "kwargs": dict(one.kwargs),
        "severity": one.severity.value,
        # Two that are the same count as one, unless they differ somewhere.
        "meta": {_NUMBER: number},
    }


def _finding(one: Expectation, result: Any, rows: int) -> Finding:
    if result is None or _raised(result.exception_info):
        return undecided(one, "Great Expectations could not decide it for a column of this type")
    details = dict(result.result)
    if one.kind == Kind.WHOLE:
        return Finding(one, bool(result.success), rows)
    failed = np.zeros(rows, np.bool_)
    failed[details.get("unexpected_index_list") or []] = True
    looked = details.get("element_count", rows) - (details.get("missing_count") or 0)
    return verdict(one, failed, looked)


def _raised(info: dict[str, Any]) -> bool:
    if "raised_exception" in info:
        return bool(info["raised_exception"])
    return any(one.get("raised_exception") for one in info.values())


def _vector_classes() -> list[Any]:
    """Define the expectations about vectors; defining one registers it."""
    from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
    from great_expectations.expectations.expectation import ColumnMapExpectation
    from great_expectations.expectations.metrics import map_metric_provider

    providers: Any = map_metric_provider

    def metric(type_: str, keys: tuple[str, ...]) -> Any:
        def pandas(cls: Any, column: Any, **kwargs: Any) -> Any:
            vectors = pa.array(list(column), from_pandas=False)
            return ~vector_failures(type_, vectors, {key: kwargs.get(key) for key in keys})

        return type(
            f"Metric_{type_}",
            (providers.ColumnMapMetricProvider,),
            {
                "condition_metric_name": _metric_name(type_),
                "condition_value_keys": keys,
                "filter_column_isnull": type_ != "expect_vector_values_to_not_be_null",
                "_pandas": providers.column_condition_partial(engine=PandasExecutionEngine)(pandas),
            },
        )

    from memwal.quality.registry import RULES

    classes = []
    for type_ in VECTOR_CHECKS:
        rule = RULES[type_]
        keys = (*(key for key in rule.needs if key != "column"), *rule.takes)
        classes.append(metric(type_, keys))
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
                    "map_metric": _metric_name(type_),
                    "success_keys": (*keys, "mostly"),
                    "args_keys": ("column", *keys),
                },
            )
        )
    return classes


def _metric_name(type_: str) -> str:
    return f"column_values.{type_.removeprefix('expect_')}"
