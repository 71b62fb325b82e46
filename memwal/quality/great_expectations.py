"""What Great Expectations itself decides, and the expectations that it learns from here.

Importing this module does not load it; each function does, which takes about six seconds.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from memwal.errors import MissingExtraError
from memwal.extras import needs
from memwal.quality.evaluate import Finding, undecided, verdict
from memwal.quality.expectation import Expectation
from memwal.quality.kinds import Kind
from memwal.quality.vectors import VECTOR_CHECKS, is_vector, vector_failures

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.data_context.data_context.ephemeral_data_context import (
        EphemeralDataContext,
    )

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
        with needs("quality"):
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

    from memwal.quality.kinds import RULES

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
