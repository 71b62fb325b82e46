"""What Airflow is told of this package: valid, and whole."""

import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import memwal_airflow
import pytest
from airflow.dag_processing.bundles.base import BaseDagBundle
from airflow.sdk import (
    Asset,
    BaseHook,
    BaseNotifier,
    BaseOperator,
    BaseOperatorLink,
    BaseSensorOperator,
)
from airflow.triggers.base import BaseTrigger
from memwal_airflow.assets import (
    changed_asset,
    due_asset,
    indexed_asset,
    merged_asset,
    unwatched_asset,
)
from memwal_airflow.provider import get_provider_info

INFO = get_provider_info()


def classes() -> Iterator[type]:
    """Yield the classes of all modules of the package."""
    for found in pkgutil.walk_packages(memwal_airflow.__path__, "memwal_airflow."):
        # The page has no such parts, and the files of DAGs need a catalog.
        if found.name.split(".")[1] not in ("dags", "ui", "web"):
            module = importlib.import_module(found.name)
            own = inspect.getmembers(module, inspect.isclass)
            yield from (kind for _, kind in own if kind.__module__ == found.name)


def modules(key: str) -> set[str]:
    (integration,) = INFO[key]
    assert integration["integration-name"] == INFO["integrations"][0]["integration-name"]
    return set(integration["python-modules"])


def test_it_has_the_form_of_airflow_s_schema() -> None:
    schema = json.loads(Path(airflow.__file__).with_name("provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


def test_all_parts_for_airflow_are_listed_and_exist() -> None:
    bases: dict[str, Any] = {
        "sensors": BaseSensorOperator,
        "operators": BaseOperator,
        "hooks": BaseHook,
        "triggers": BaseTrigger,
        "bundles": BaseDagBundle,
        "extra-links": BaseOperatorLink,
        "notifications": BaseNotifier,
    }
    found: dict[str, set[str]] = {key: set() for key in bases}
    for kind in classes():
        key = next((key for key, base in bases.items() if issubclass(kind, base)), None)
        if key in ("extra-links", "notifications"):
            found[key].add(f"{kind.__module__}.{kind.__name__}")
        elif key is not None:
            found[key].add(kind.__module__)
    listed = {key: modules(key) for key in bases if key not in ("extra-links", "notifications")}
    listed |= {key: set(INFO[key]) for key in ("extra-links", "notifications")}
    assert listed == found


def test_airflow_checks_the_addresses_of_assets() -> None:
    made = due_asset("t"), merged_asset("t"), indexed_asset("t"), changed_asset("t", "c")
    for asset in (*made, unwatched_asset()):
        assert Asset(asset.uri).normalized_uri == asset.uri
    lacking = "memwal://t", "memwal:///merged", "memwal://t/changed"
    for wrong in ("memwal://t/merge", "memwal://due/x", *lacking):
        with pytest.raises(ValueError, match="memwal"):
            Asset(wrong)


def test_airflow_makes_the_assets_of_lineage() -> None:
    from airflow.sdk.lineage import HookLineageCollector

    make = HookLineageCollector().create_asset
    assert make(scheme="memwal", asset_kwargs={"table": "t"}) == merged_asset("t")
    asset = make(
        scheme="memwal", asset_kwargs={"table": "t", "event": "indexed"}, asset_extra={"version": 3}
    )
    assert asset is not None
    assert (asset.uri, asset.extra) == (indexed_asset("t").uri, {"version": 3})
