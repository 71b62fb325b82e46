"""Values: what is wrong is refused with a reason, and what there is, is described."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from memwal_airflow.provider.settings import SETTINGS
from support.docs.scripts import script
from support.kubernetes.chart import CHART, Release
from support.kubernetes.chart_values import CONNECT, SPARK

import memwal

ROOT = Path(__file__).resolve().parents[2]
VALUES = (CHART / "values.yaml").read_text()
DESCRIBE = script("describe_chart")
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def nested(path: str, value: Any) -> dict[str, Any]:
    """Values with one at a path."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("catalogue", {}, "catalogue"),
        ("fleet.enable", True, "enable"),
        ("spark.driver.pod.nodeselector", {}, "nodeselector"),
        ("migrations.enabled", "yes", "migrations.enabled"),
        ("airflow.settings", {"verify_table": 3}, "verify_table"),
        ("fleet.replicas", 0, "fleet.replicas"),
        ("fleet.jobs", "two", "fleet.jobs"),
        ("fleet.bytes", 1.5, "fleet.bytes"),
        ("fleet.schedule", "every day", "fleet.schedule"),
        ("fleet.tables", ["a", "a"], "fleet.tables"),
        ("fleet.tables", ["--once"], "fleet.tables"),
        ("metrics.port", 80, "metrics.port"),
        ("metrics.ingress.path", "metrics", "metrics.ingress.path"),
        ("images.pullPolicy", "Sometimes", "images.pullPolicy"),
        ("images.registry", "https://registry.example", "images.registry"),
        ("images.tag", "a tag", "images.tag"),
        ("catalog.existingSecret", "", "catalog.existingSecret"),
        ("catalog.existingSecret", "postgresql://u:p@db/x", "catalog.existingSecret"),
        ("objectStore.identity.provider", "ibm", "objectStore.identity.provider"),
        ("objectStore.identity.aws.roleArn", "memwal", "roleArn"),
        ("objectStore.identity.gcp.serviceAccount", "memwal", "serviceAccount"),
        ("objectStore.identity.azure.clientId", "memwal", "clientId"),
        ("objectStore.env", {"AWS_SECRET_ACCESS_KEY": "x"}, "objectStore.env"),
        ("objectStore.env", {"AZURE_STORAGE_SAS_TOKEN": "x"}, "objectStore.env"),
        ("objectStore.secretEnv", {"A": {"secret": "lake"}}, "key"),
        ("objectStore.secretEnv", {"A": {"secret": "s", "key": "k", "value": "v"}}, "value"),
        ("objectStore.secretFiles", [{"secret": "lake", "mountPath": "lake"}], "mountPath"),
        ("spark.properties", {"spark.hadoop.fs.s3a.secret.key": "x"}, "spark.properties"),
        ("spark.properties", {"spark.ssl.keyPassword": "x"}, "spark.properties"),
        ("spark.properties", {"executor.memory": "x"}, "spark.properties"),
        ("connect.properties", {"spark.ssl.keyPassword": "x"}, "connect.properties"),
        ("connect.cores", 0, "connect.cores"),
        ("spark.executor.memory", "2 gigabytes", "spark.executor.memory"),
        ("spark.executor.max", 0, "spark.executor.max"),
        ("spark.resultsUri", "s3://user:password@lake/results", "spark.resultsUri"),
        ("airflow.executor", "SequentialExecutor", "airflow.executor"),
        ("airflow.version", "2.10.0", "airflow.version"),
        ("commonLabels", {"team": "data and more"}, "commonLabels.team"),
        ("pod.extraEnv", [{"value": "x"}], "name"),
        ("fleet.resources.requests", {"cpu": "much"}, "cpu"),
        ("networkPolicy.catalog.ports", [], "networkPolicy.catalog.ports"),
        ("networkPolicy.catalog.ports", [0], "networkPolicy.catalog.ports"),
        ("prometheus.serviceMonitor.interval", "often", "interval"),
        ("prometheus.rules.runbookUrl", "https://docs.example/", "runbookUrl"),
    ],
)
def test_the_schema_refuses_a_wrong_value_by_its_name(path: str, value: Any, said: str) -> None:
    (error,) = Draft7Validator(SCHEMA).iter_errors(nested(path, value))
    assert said in f"{error.json_path} {error.message}"


def test_helm_asks_the_schema() -> None:
    values = {"fleet": {"enable": True}, "metrics": {"port": 80}}
    refusal = Release(values=values).refusal()
    assert "fleet: " in refusal
    assert " enable " in refusal
    assert "metrics.port" in refusal


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"spark": {"enabled": True}}, "spark.resultsUri: name a folder in an object store"),
        (
            {"spark": {**SPARK, "executor": {"min": 9}}},
            "spark.executor.min is more than spark.executor.max",
        ),
        (
            {"spark": SPARK, "connect": CONNECT},
            "spark.enabled and connect.enabled are both true",
        ),
        (
            {"connect": {**CONNECT, "properties": {"spark.master": "local[9]"}}},
            "the chart sets spark.master itself",
        ),
        (
            nested("connect", CONNECT) | nested("airflow.settings.spark_master", "local[1]"),
            "the chart sets spark_master itself",
        ),
        (
            {"spark": {**SPARK, "properties": {"spark.executor.memory": "9g"}}},
            "the chart sets spark.executor.memory itself",
        ),
        (
            nested("objectStore.identity.aws.roleArn", "arn:aws:iam::123456789012:role/memwal"),
            "set objectStore.identity.provider to aws",
        ),
        (nested("objectStore.identity.provider", "azure"), "name the managed identity"),
        (
            {
                "objectStore": {
                    "env": {"AWS_REGION": "x"},
                    "secretEnv": {"AWS_REGION": {"secret": "lake", "key": "region"}},
                }
            },
            "AWS_REGION stands in env and in secretEnv",
        ),
        (
            nested(
                "objectStore.secretFiles",
                [{"secret": name, "mountPath": "/etc/lake"} for name in ("a", "b")],
            ),
            "the folder /etc/lake stands there twice",
        ),
        (
            nested("tests.verify", {"table": "s3://b/t", "storageOptionsFile": "/etc/x.json"}),
            "/etc/x.json is in none of the folders",
        ),
        (
            nested("serviceAccounts.tables.create", False),
            "serviceAccounts.tables.name: name the account",
        ),
        (
            {"metrics": {"enabled": False}, "prometheus": {"serviceMonitor": {"enabled": True}}},
            "metrics.enabled is false",
        ),
        (nested("metrics.ingress.enabled", True), "metrics.ingress.host: name the host"),
    ],
)
def test_values_that_do_not_go_together_are_refused(values: dict[str, Any], said: str) -> None:
    assert said in Release(values=values).refusal()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spark.resultsUri", "abfss://lake@account.dfs.core.windows.net/memwal"),
        ("spark.resultsUri", "gs://lake/memwal"),
        ("images.registry", "registry.example:5000/data"),
        ("objectStore.env", {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_REGION": "x"}),
        ("objectStore.identity.aws", {"roleArn": ""}),
        ("fleet.resources", {"requests": {"cpu": 1}, "limits": {"cpu": 2.5, "memory": "1Gi"}}),
        ("airflow.version", "3.3.10"),
    ],
)
def test_what_is_right_is_taken(path: str, value: Any) -> None:
    assert list(Draft7Validator(SCHEMA).iter_errors(nested(path, value))) == []


def objects(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of the schema that has keys of its own."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    if "properties" in schema:
        yield path, schema
        for name, below in schema["properties"].items():
            yield from objects(below, f"{path}.{name}".lstrip("."))


def test_the_schema_is_strict() -> None:
    for path, schema in objects(SCHEMA):
        assert schema["additionalProperties"] is False, path


def test_the_schema_knows_what_values_has_and_nothing_else() -> None:
    values = yaml.safe_load(VALUES)
    # Helm itself gives `global` to a chart that is part of another one.
    values["global"] = {}
    for path, schema in objects(SCHEMA):
        found = values
        for key in filter(None, path.split(".")):
            found = found[key]
        if path.endswith(".pod"):
            assert found == {}, path
        elif not path.endswith("resources"):
            assert set(found) == set(schema["properties"]), path


def test_every_definition_of_the_schema_is_used() -> None:
    text = json.dumps(SCHEMA)
    for name in SCHEMA["definitions"]:
        assert f'"#/definitions/{name}"' in text, name


def test_the_table_of_values_is_current() -> None:
    readme = (CHART / "README.md").read_text()
    assert DESCRIBE.written(readme, VALUES) == readme, "run python scripts/describe_chart.py"


def undescribed(module: ModuleType, text: str) -> list[str]:
    """Paths of values that no comment is about."""
    documented = {value.path for value in module.described(text) if not value.section}

    def missing(values: Any, path: str) -> Iterator[str]:
        if path in documented:
            return
        if isinstance(values, dict) and values:
            for key, value in values.items():
                yield from missing(value, f"{path}.{key}" if path else str(key))
        else:
            yield path

    return list(missing(yaml.safe_load(text), ""))


def test_every_value_is_described() -> None:
    assert undescribed(DESCRIBE, VALUES) == []


def test_chart_and_package_are_of_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == memwal.__version__
    assert f"### {chart['version']}" in (CHART / "UPGRADING.md").read_text()


def test_every_setting_of_airflow_is_known() -> None:
    """Each setting that the code reads, and no other, may be given in airflow.settings."""
    known = SCHEMA["properties"]["airflow"]["properties"]["settings"]["propertyNames"]["enum"]
    assert known == sorted(setting.key for setting in SETTINGS)
