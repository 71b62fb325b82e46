"""The chart as a whole, held against stored renderings, which ``--renew`` writes anew."""

import re
from difflib import unified_diff

import pytest
from support.kubernetes.chart import Release
from support.kubernetes.chart_values import MATRIX, SPARK, identity
from support.renderings import Stored

ALONE = "Prometheus operator", "a name of its own", "long names", "many tables"
"""Cases of more lines than a reader of a rendering sees through; only rules are tested of these."""

FIRST = "all parts"
CASES = {name: release for name, release in MATRIX.items() if name not in ALONE} | {
    FIRST: Release(values=identity("none")),
    "placement of one part": Release(
        values={
            "pod": {"nodeSelector": {"disk": "ssd", "zone": "a"}, "priorityClassName": "batch"},
            "metrics": {"pod": {"nodeSelector": {"disk": "none"}, "priorityClassName": "urgent"}},
        }
    ),
    "large numbers": Release(
        values={
            "fleet": {
                "enabled": True,
                "jobs": 3,
                "bytes": 1 << 40,
                "leaseSeconds": 90,
                "tables": ["flights", "eu_orders"],
            },
            "migrations": {"activeDeadlineSeconds": 86_400_000},
        }
    ),
    "other DNS": Release(
        values={
            "networkPolicy": {
                "dns": {
                    "to": [
                        {
                            "namespaceSelector": {
                                "matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}
                            }
                        }
                    ],
                    "ports": [5353],
                }
            }
        }
    ),
    "Spark's properties": Release(
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
                    "scratchSize": "",
                },
                "properties": {
                    "spark.eventLog.enabled": True,
                    "spark.eventLog.dir": "s3a://lake/logs",
                    "spark.task.maxFailures": 8,
                    "spark.driver.extraJavaOptions": "-Dx=a\\b",
                },
            }
        }
    ),
}
SHIPPED = re.compile(r"^kind: PrometheusRule$|^  memwal\.json: ", re.MULTILINE)


def documents(release: Release) -> dict[str, str]:
    """The objects of a rendering by kind and name, without what comes with memwal's exporter."""
    found = {}
    for text in re.split(r"^---$\n", release.text(), flags=re.MULTILINE):
        if text.strip() and not SHIPPED.search(text):
            kind, name = (
                re.search(rf"^{key}: (.+)$", text, re.MULTILINE) for key in ("kind", "  name")
            )
            assert kind is not None
            assert name is not None
            found[f"{kind[1]} {name[1]}"] = text
    return found


def changed(name: str, before: str, after: str) -> str:
    """The lines of an object that are not those of the first case."""
    lines = unified_diff(before.splitlines(True), after.splitlines(True), n=2)
    return "".join([f"=== {name}\n", *("@@\n" if line[:2] == "@@" else line for line in lines)])


@pytest.mark.parametrize("case", CASES)
def test_the_rendering_is_the_one_that_is_stored(case: str, stored: Stored) -> None:
    """The first case as it is; of the others, what differs from it."""
    found = documents(CASES[case])
    if case == FIRST:
        stored(file_of(case), "".join(f"---\n{text}" for text in found.values()))
        return
    first = documents(CASES[FIRST])
    parts = [f"=== without {name}\n" for name in first if name not in found]
    for name, text in found.items():
        if name not in first:
            parts.append(f"=== with {name}\n{text}")
        elif text != first[name]:
            parts.append(changed(name, first[name], text))
    stored(file_of(case), "".join(parts))


def file_of(case: str) -> str:
    """The name of the file of a case."""
    name = re.sub("[^a-z0-9]+", "-", case.lower())
    return f"{name}.yaml" if case == FIRST else f"{name}.diff"


def test_no_stored_rendering_is_left_over(stored: Stored) -> None:
    assert {path.name for path in stored.folder.iterdir()} == {file_of(case) for case in CASES}
