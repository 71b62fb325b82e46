"""Spark in the cluster: properties that Spark knows, templates that are its pods."""

from __future__ import annotations

import re
import zipfile
from functools import cache
from pathlib import Path

import pyspark
import pytest
from support.kubernetes.chart import Release, named, spark_files, spark_properties, spark_template
from support.kubernetes.chart_values import MATRIX, SPARK

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


def test_properties_from_values() -> None:
    release = Release(
        values={
            "spark": {
                **SPARK,
                "namespace": "jobs",
                "driver": {"cores": 2, "memory": "2g", "memoryOverhead": "3g"},
                "executor": {
                    "cores": 4,
                    "memory": "512m",
                    "memoryOverhead": "12g",
                    "min": 1,
                    "max": 20,
                    "idleSeconds": 120,
                },
                "properties": {
                    "spark.eventLog.enabled": True,
                    "spark.eventLog.dir": "s3a://lake/logs",
                    "spark.task.maxFailures": 8,
                    "spark.driver.extraJavaOptions": "-Dx=a\\b",
                },
            }
        }
    )
    found = spark_properties(release.objects())
    expected = {
        "spark.kubernetes.namespace": "jobs",
        "spark.kubernetes.container.image": "memwal-spark:0.1.0",
        "spark.driver.cores": "2",
        "spark.driver.memory": "2g",
        "spark.driver.memoryOverhead": "3g",
        "spark.executor.cores": "4",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "12g",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": "20",
        "spark.dynamicAllocation.executorIdleTimeout": "120s",
        # A job divides its work by this, and would ask for two executors otherwise.
        "spark.default.parallelism": "80",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": "s3a://lake/logs",
        "spark.task.maxFailures": "8",
        # As Java reads it: a backslash stands for itself when there are two.
        "spark.driver.extraJavaOptions": "-Dx=a\\\\b",
    }
    assert {name: found.get(name) for name in expected} == expected


def test_what_travels_is_encrypted() -> None:
    found = spark_properties(MATRIX["Spark"].objects())
    for name in (
        "spark.authenticate",
        "spark.network.crypto.enabled",
        "spark.io.encryption.enabled",
    ):
        assert found[name] == "true"


def test_a_driver_needs_no_right_that_it_has_not() -> None:
    """What Spark would do with config maps, services and volume claims is switched off."""
    found = spark_properties(MATRIX["Spark"].objects())
    assert found["spark.kubernetes.executor.disableConfigMap"] == "true"
    assert found["spark.kubernetes.driver.service.deleteOnTermination"] == "false"
    assert found["spark.kubernetes.driver.ownPersistentVolumeClaim"] == "false"
    assert found["spark.kubernetes.driver.reusePersistentVolumeClaim"] == "false"


def test_whoever_submits_needs_no_right_to_network_policies() -> None:
    found = spark_properties(MATRIX["Spark"].objects())
    step = found["spark.kubernetes.driver.pod.excludedFeatureSteps"]
    with zipfile.ZipFile(next(JARS.glob("spark-kubernetes_*.jar"))) as classes:
        assert f"{step.replace('.', '/')}.class" in classes.namelist()


def test_the_store() -> None:
    found = spark_properties(MATRIX["secrets"].objects())
    for part, variables in (
        ("driver", "spark.kubernetes.driverEnv."),
        ("executor", "spark.executorEnv."),
    ):
        assert found[f"{variables}AWS_REGION"] == "eu-central-1"
        keys = f"spark.kubernetes.{part}.secretKeyRef."
        assert found[f"{keys}AWS_SECRET_ACCESS_KEY"] == "lake:secret-key"
    # The driver alone reads files of storage options; they go on inside the tasks.
    assert found["spark.kubernetes.driver.secrets.lake-options"] == "/etc/memwal/lake"
    assert not [name for name in found if name.startswith("spark.kubernetes.executor.secrets.")]


def test_the_templates_are_where_the_properties_say() -> None:
    objects = MATRIX["Spark"].objects()
    found = spark_properties(objects)
    for part in ("driver", "executor"):
        path = Path(found[f"spark.kubernetes.{part}.podTemplateFile"])
        assert path.parent == Path("/etc/memwal/spark")
        assert path.name in spark_files(objects)


@pytest.mark.parametrize("part", ["driver", "executor"])
def test_templates(part: str) -> None:
    template = spark_template(MATRIX["Spark"].objects(), part)
    (container,) = template["spec"]["containers"]
    # Spark's own name, by which everybody asks for the log.
    assert container["name"] == f"spark-kubernetes-{part}"
    (mount,) = container["volumeMounts"]
    # Spark takes volumes of this name for its scratch space, and makes no others.
    assert mount == {"name": "spark-local-dir-1", "mountPath": container["workingDir"]}
    assert {"name": "TMPDIR", "value": container["workingDir"]} in container["env"]
    assert template["spec"]["securityContext"]["runAsUser"] == 185


def test_scratch_space_of_executors_is_limited() -> None:
    template = spark_template(MATRIX["Spark"].objects(), "executor")
    assert template["spec"]["volumes"][0]["emptyDir"] == {"sizeLimit": "20Gi"}
    unlimited = Release(values={"spark": {**SPARK, "executor": {"scratchSize": ""}}})
    template = spark_template(unlimited.objects(), "executor")
    assert template["spec"]["volumes"][0]["emptyDir"] == {}


def test_the_configuration_is_where_airflow_is() -> None:
    """Its tasks read it; drivers run elsewhere."""
    objects = MATRIX["Spark in a namespace of its own"].objects()
    found = named(objects, "ConfigMap", "memwal-spark")
    assert found["metadata"]["namespace"] == "data"
    assert named(objects, "ServiceAccount", "memwal-spark")["metadata"]["namespace"] == "jobs"
