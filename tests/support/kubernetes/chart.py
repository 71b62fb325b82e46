"""The Helm chart, rendered by a real helm."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[3] / "helm" / "memwal"
HELM = Path(sys.executable).with_name("helm")

Object = dict[str, Any]
"""A Kubernetes object."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """How the chart is installed.

    Attributes
    ----------
    values : mapping
        Beside the chart's own.
    name, namespace : str
        Of the release.
    kubernetes : str or None
        Version of Kubernetes; helm's own by default.
    chart : Path
        A folder or a package.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    name: str = "memwal"
    namespace: str = "data"
    kubernetes: str | None = None
    chart: Path = CHART

    def arguments(self) -> list[str]:
        """What ``helm template`` is given, without the values."""
        version = [] if self.kubernetes is None else ["--kube-version", self.kubernetes]
        return [self.name, str(self.chart), "--namespace", self.namespace, *version]

    def objects(self) -> list[Object]:
        """What is rendered."""
        found: list[Object] = json.loads(_parsed(self.text()))
        return found

    def text(self) -> str:
        """What is rendered, as it is written.

        Raises
        ------
        subprocess.CalledProcessError
            helm refuses it; ``stderr`` says why.
        """
        return _rendered(tuple(self.arguments()), json.dumps(self.values))

    def refusal(self) -> str:
        """Why helm refuses it."""
        try:
            self.text()
        except subprocess.CalledProcessError as error:
            return str(error.stderr)
        raise AssertionError("helm renders it")


@cache
def _rendered(arguments: tuple[str, ...], values: str) -> str:
    return helm("template", *arguments, "--values", "-", values=values)


# JSON is read again in no time, and everybody gets objects of their own.
@cache
def _parsed(text: str) -> str:
    return json.dumps([one for one in yaml.load_all(text, Loader=yaml.CSafeLoader) if one])


def helm(*arguments: str, values: str | None = None) -> str:
    """Run helm; return what it prints."""
    try:
        return subprocess.run(
            [HELM, *arguments], input=values, text=True, capture_output=True, check=True
        ).stdout
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """The objects of these kinds."""
    return [found for found in objects if found["kind"] in kinds]


def named(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of this kind and name."""
    (found,) = (one for one in of_kind(objects, kind) if one["metadata"]["name"] == name)
    return found


def pods(objects: list[Object]) -> Iterator[tuple[str, str, Object]]:
    """What pods there will be: a name for messages, the namespace, and ``metadata`` and ``spec``.

    Those of Spark are not made by Kubernetes, but by Spark from the templates in a config map.
    """
    for found in objects:
        name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
        match found["kind"]:
            case "Pod":
                yield name, namespace, found
            case "Deployment" | "Job":
                yield name, namespace, found["spec"]["template"]
            case "CronJob":
                yield name, namespace, found["spec"]["jobTemplate"]["spec"]["template"]
    if any("spark.properties" in found.get("data", {}) for found in objects):
        properties = spark_properties(objects)
        for part in ("driver", "executor"):
            template = spark_template(objects, part)
            account = properties[f"spark.kubernetes.authenticate.{part}.serviceAccountName"]
            template["spec"]["serviceAccountName"] = account
            yield part, properties["spark.kubernetes.namespace"], template


def containers(pod: Object) -> list[Object]:
    """All containers of a pod."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def spark_files(objects: list[Object]) -> Mapping[str, str]:
    """What Spark is configured by: files by name."""
    (found,) = (one for one in objects if "spark.properties" in one.get("data", {}))
    files: Mapping[str, str] = found["data"]
    return files


def spark_properties(objects: list[Object]) -> dict[str, str]:
    """Spark's properties, by name."""
    lines = spark_files(objects)["spark.properties"].splitlines()
    return dict(line.split("=", 1) for line in lines)


def spark_template(objects: list[Object], part: str) -> Object:
    """The template of driver or executor."""
    template: Object = yaml.safe_load(spark_files(objects)[f"{part}.yaml"])
    return template


def airflow_values(objects: list[Object]) -> Object:
    """The values for the chart of Airflow."""
    (found,) = (one for one in objects if "values.yaml" in one.get("data", {}))
    values: Object = yaml.safe_load(found["data"]["values.yaml"])
    return values


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a selector by labels chooses these."""
    assert set(selector) <= {"matchLabels"}, selector
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def policies_of(objects: list[Object], namespace: str, pod: Object) -> list[Object]:
    """The policies that choose a pod."""
    return [
        one
        for one in of_kind(objects, "NetworkPolicy")
        if one["metadata"]["namespace"] == namespace
        and matches(one["spec"]["podSelector"], pod["metadata"]["labels"])
    ]
