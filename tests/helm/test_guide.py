"""The guide to Kubernetes names what there is."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.kubernetes.chart import CHART, Release

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "kubernetes.md").read_text()
BLOCKS: list[dict[str, Any]] = [
    yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", GUIDE, flags=re.DOTALL)
]
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_values_of_the_guide_are_taken(number: int) -> None:
    values = BLOCKS[number]
    if "spark" in values:
        values["spark"].setdefault("resultsUri", "s3://lake/memwal/results")
    assert Release(values=values, namespace="memwal").objects()


def test_values_that_are_named_exist() -> None:
    words = re.findall(r"`([a-z][A-Za-z]+(?:\.[A-Za-z]+)+)`", GUIDE)
    of_spark = ("spark.network.",)
    named = [
        word.split(".")
        for word in words
        if word.split(".")[0] in VALUES and not word.startswith(of_spark)
    ]
    assert len(named) > 20
    for path in named:
        found: Any = VALUES
        for key in path:
            assert key in found, ".".join(path)
            found = found[key]


def test_objects_that_are_named_exist() -> None:
    """In the release that the guide installs."""
    objects = Release(values=BLOCKS[0], namespace="memwal").objects()
    names = {one["metadata"]["name"] for one in objects}
    namespaces = {one["metadata"]["namespace"] for one in objects}
    for word in re.findall(r"(?:`|deploy/|configmap )(memwal-[a-z-]+)", GUIDE):
        # Images, a namespace and a Secret that the reader makes have names like these, too.
        if word not in {"memwal-values", "memwal-jobs"}:
            assert word in names | {f"memwal-{image}" for image in ("spark", "airflow")}, word
    assert namespaces == set(re.findall(r"kubectl create namespace (\S+)", GUIDE))
