"""docs/metrics.md and the table of all metrics say what the code says."""

from pathlib import Path

from metric_tables import JOBS, TABLES, WRITERS, markdown

from memwal.exporter import collector
from memwal.exporter.collector import prometheus_name
from memwal.jobs import metrics as jobs
from memwal.telemetry import MetricDefinition, spans

TEXT = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def test_every_metric_has_a_line() -> None:
    written = [line for line in markdown().splitlines() if line.startswith("| `memwal.")]
    assert len(written) == len(WRITERS) + len(JOBS) + len(TABLES)
    assert all(line.count("|") == 5 for line in written)


def test_attributes() -> None:
    values = {value for name, value in vars(spans).items() if name.isupper()}
    names = {value for value in values if value.startswith("memwal.")}
    assert all(f"`{name}`" in TEXT for name in names)


def test_metrics_of_the_page_exist() -> None:
    known = {metric.name for metric, _ in (*WRITERS, *JOBS, *TABLES)}
    for name in ("memwal.writer.unflushed.age", "memwal.table.backlog.age", "memwal.job.written"):
        assert name in known
        assert f"`{name}`" in TEXT


def test_names_are_said_once() -> None:
    metrics = [metric for metric, _ in (*WRITERS, *JOBS, *TABLES)]
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names)
    assert len({prometheus_name(metric) for metric in metrics}) == len(names)


def test_nothing_is_left_out() -> None:
    known = {metric for metric, _ in (*JOBS, *TABLES)}
    for module in (collector, jobs):
        assert {one for one in vars(module).values() if isinstance(one, MetricDefinition)} <= known
