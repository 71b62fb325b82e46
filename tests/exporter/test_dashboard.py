"""The shipped dashboard: whole, as Grafana takes it, and of metrics that are exposed."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.metrics.exposed import exposed
from support.metrics.promql import grouped, selected
from support.metrics.promtool import promtool

from memwal.exporter import DASHBOARD, shipped

BOARD: dict[str, Any] = json.loads(shipped(DASHBOARD))
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
VARIABLES = {one["name"] for one in BOARD["templating"]["list"]}
# Of Grafana's own units.
UNITS = {"s", "bytes", "none", "short", "rowsps", "percentunit", "x"}


each = pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])


@each
def test_metrics_labels_and_variables_exist(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    for target in panel["targets"]:
        expression = target["expr"]
        found = selected(expression)
        assert found
        known = {"le"}
        for one in found:
            assert one.metric in exposed(), f"nobody exposes {one.metric}"
            labels = exposed()[one.metric]
            assert one.labels <= labels, f"{one.metric} has no {one.labels - labels}"
            known |= labels
        assert grouped(expression) <= known
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known
        assert set(re.findall(r"\$(\w+)", expression)) <= VARIABLES


def test_variables_ask_for_what_is_exposed() -> None:
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
            assert asked
            assert asked[2] in exposed()[asked[1]]


@pytest.mark.slow
def test_promtool_takes_every_expression(tmp_path: Path) -> None:
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    rules = [
        {"record": f"memwal:panel:{number}", "expr": expression.replace("$table", ".*")}
        for number, expression in enumerate(expressions)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [promtool(), "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


AMPLIFIED = {
    'memwal_table_info{memwal_table="t",memwal_table_uri="/t",memwal_owner="o"}': "1x100",
    'memwal_table_backlog_generations{memwal_table="t"}': "6x100",
    'memwal_table_backlog_deepest{memwal_table="t"}': "4x100",
    'memwal_table_regions{memwal_table="t"}': "2x100",
    'memwal_table_reclaimable_size_bytes{memwal_table="t"}': "30x100",
    'memwal_table_backlog_bytes{memwal_table="t"}': "20x100",
    'memwal_table_base_size_bytes{memwal_table="t"}': "100x100",
    'memwal_writer_bytes_total{memwal_table_uri="/t",instance="a"}': "0+60x100",
    'memwal_writer_bytes_total{memwal_table_uri="/t",instance="b"}': "0+60x100",
    'memwal_writer_entries_size_bytes_total{memwal_table_uri="/t",instance="a"}': "0+60x100",
    'memwal_writer_entries_size_bytes_total{memwal_table_uri="/t",instance="b"}': "0+60x100",
    'memwal_writer_generations_size_bytes_total{memwal_table_uri="/t",instance="a"}': "0+60x100",
    'memwal_writer_generations_size_bytes_total{memwal_table_uri="/t",instance="b"}': "0+60x100",
    'memwal_job_written_bytes_total{memwal_table="t",memwal_job="merge"}': "0+60x100",
}


@pytest.mark.slow
def test_amplification_is_what_the_formulas_say(tmp_path: Path) -> None:
    def expression(title: str, number: int = 0) -> str:
        (panel,) = (panel for panel in PANELS if panel["title"] == title)
        text: str = panel["targets"][number]["expr"]
        return text.replace("$table", ".*")

    cases = [
        (expression("Write amplification"), '{memwal_table_uri="/t"}', 2.5),
        (expression("Read amplification"), '{memwal_table="t"}', 4),
        (expression("Read amplification", 1), '{memwal_table="t"}', 5),
        (expression("Space amplification"), '{memwal_table="t"}', 1.5),
    ]
    test = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": k, "values": v} for k, v in AMPLIFIED.items()],
                "promql_expr_test": [
                    {
                        "expr": expr,
                        "eval_time": "90m",
                        "exp_samples": [{"labels": labels, "value": value}],
                    }
                    for expr, labels, value in cases
                ],
            }
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [promtool(), "test", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
