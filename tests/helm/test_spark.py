"""Properties of Spark in the cluster: Spark knows them, and they encrypt what travels."""

import re
import zipfile
from functools import cache
from pathlib import Path

import pyspark
import pytest
from support.kubernetes.chart import spark_properties
from support.kubernetes.chart_values import MATRIX

JARS = Path(pyspark.__file__).parent / "jars"

# What a name may go on with is the user's.
PREFIXES = (
    "spark.executorEnv.",
    "spark.kubernetes.driverEnv.",
    "spark.kubernetes.driver.secretKeyRef.",
    "spark.kubernetes.executor.secretKeyRef.",
    "spark.kubernetes.driver.secrets.",
)


@cache
def known() -> set[str]:
    """Names of properties in the configuration classes of the Spark that memwal runs on."""
    found = set()
    for jar in JARS.glob("spark-[ck]*_2.13-*.jar"):
        if not jar.name.startswith(("spark-core_", "spark-kubernetes_")):
            continue
        with zipfile.ZipFile(jar) as classes:
            for name in classes.namelist():
                if re.search(r"/internal/config/\w+\$?\.class|/k8s/Config\$?\.class", name):
                    text = classes.read(name)
                    found |= {one.decode() for one in re.findall(rb"spark\.[A-Za-z0-9.]+", text)}
    return found


@pytest.mark.parametrize("case", ["Spark", "everything", "secrets"])
def test_spark_knows_the_properties(case: str) -> None:
    for name in spark_properties(MATRIX[case].objects()):
        if name.startswith(PREFIXES):
            continue
        # Accounts are put together: the start of the name is a constant, its end another one.
        name = re.sub(r"\.serviceAccountName$", "", name)
        if name != "spark.ui.enabled":
            assert name in known(), name


def test_what_spark_does_not_know_is_found() -> None:
    assert "spark.kubernetes.namespace" in known()
    assert "spark.kubernetes.namespaces" not in known()


def test_what_travels_is_encrypted() -> None:
    found = spark_properties(MATRIX["Spark"].objects())
    for name in (
        "spark.authenticate",
        "spark.network.crypto.enabled",
        "spark.io.encryption.enabled",
    ):
        assert found[name] == "true"


def test_whoever_submits_needs_no_right_to_network_policies() -> None:
    found = spark_properties(MATRIX["Spark"].objects())
    step = found["spark.kubernetes.driver.pod.excludedFeatureSteps"]
    with zipfile.ZipFile(next(JARS.glob("spark-kubernetes_*.jar"))) as classes:
        assert f"{step.replace('.', '/')}.class" in classes.namelist()
