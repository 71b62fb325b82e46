"""Facts about Spark, Airflow and Python packages around them."""

import inspect
from importlib.metadata import PackageNotFoundError, requires, version

import pytest


def test_the_spark_provider_asks_for_a_package_that_overwrites_pyspark() -> None:
    wanted = requires("apache-airflow-providers-apache-spark") or []
    assert any(one.startswith("pyspark-client") and "extra ==" not in one for one in wanted)
    # And ours keeps it out: both own the folder pyspark.
    with pytest.raises(PackageNotFoundError):
        version("pyspark-client")


def test_airflow_takes_the_first_plugin_of_a_name_and_reports_the_second() -> None:
    from airflow import plugins_manager

    source = inspect.getsource(plugins_manager._get_plugins.__wrapped__)
    folder = source.index("_load_plugins_from_plugin_directory(")
    assert folder < source.index("_load_entrypoint_plugins()")
    assert "already registered" in source
