"""Every benchmark runs, at a size that says nothing about speed."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import figures
import growth
import pytest

ROOT = Path(__file__).parents[1]
ROWS = "300"


def kinds(lines: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    """What lines compare, whatever the sizes and the figures in their words."""
    words = [(line["name"], line["what"], line["against"], line["unit"]) for line in lines]
    return {tuple(re.sub(r"[\d,.]+", "N", word) for word in line) for line in words}


def stored_lines(program: str, *names: str) -> list[dict[str, Any]]:
    """The lines of a program, or the ones of these names, that the pages of figures hold."""
    report = json.loads((ROOT / "bench" / "figures" / f"{program}.json").read_text())
    return [line for line in report["lines"] if not names or line["name"] in names]


def assert_stored(program: str, lines: list[dict[str, Any]], *names: str) -> None:
    """The pages of figures are written from these very lines, and both sides have figures."""
    stored = stored_lines(program, *(names or {line["name"] for line in lines}))
    assert kinds(stored) == kinds(lines)
    for line in lines:
        for side in ("ours", "other"):
            assert 0 < line[side]["low"] <= line[side]["median"] <= line[side]["high"]


def test_the_page_has_the_figures_that_are_stored() -> None:
    for path in figures.PAGES:
        assert path.read_text() == figures.written(path.read_text())
    pages = "".join(path.read_text() for path in figures.PAGES)
    for part in ("missed", "asked", "growth"):
        assert pages.count(f"<!-- figures: {part} -->") == 1


def test_the_site_has_every_line_that_is_stored() -> None:
    stored = sorted((ROOT / "bench" / "figures").glob("*.json"))
    assert sorted([*figures.PROGRAMS, "growth"]) == [path.stem for path in stored]
    stored = [path for path in stored if path.stem in figures.PROGRAMS]
    rows = re.findall(r"^\| (?!what \| |---)", figures.markdown(), flags=re.M)
    assert len(rows) == sum(len(json.loads(path.read_text())["lines"]) for path in stored)


def run(program: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "bench" / program), "--rows", ROWS]
    done = subprocess.run(
        [*command, "--folder", str(folder), *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("durable-single", "requests"), id="some"),
        pytest.param((), id="every", marks=pytest.mark.bench),
    ],
)
def report(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Run benchmarks of the writer once; they leave nothing behind."""
    folder = tmp_path_factory.mktemp("bench")
    only = [f"--only={name}" for name in request.param]
    report: dict[str, Any] = json.loads(run("writer.py", folder, "--json", *only))
    assert list(folder.iterdir()) == []
    assert_stored("writer", report["lines"], *request.param)
    return report


def test_compares_both_sides_with_a_target(report: dict[str, Any]) -> None:
    for line in report["lines"]:
        assert math.isclose(line["ratio"], line["ours"]["median"] / line["other"]["median"])
        assert (line["target"] is None) == (line["met"] is None)


def test_says_where_it_was_measured(report: dict[str, Any]) -> None:
    assert {"processors", "file_system", "pylance"} <= set(report["machine"])


def test_a_flush_of_the_log_is_one_put_and_one_head(report: dict[str, Any]) -> None:
    (line,) = [line for line in report["lines"] if line["name"] == "requests"]

    assert line["ratio"] == 2
    assert re.findall(r"(\d+) ([A-Z]+)", line["note"]) == [("20", "HEAD"), ("20", "PUT")]


@pytest.mark.bench
def test_prints_a_table_with_the_target(tmp_path: Path) -> None:
    printed = run("writer.py", tmp_path, "--only", "durable-single")

    assert "<= 1.3" in printed


READS = (
    *("scan", "scan-memory", "lookup", "vector", "text", "fresh"),
    *("lookup-growth", "generations", "scan-growth", "scan-lag", "status-requests"),
)


def read_lines(folder: Path, name: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = json.loads(
        run("reader.py", folder, "--json", "--rounds", "1", "--only", name)
    )["lines"]
    assert_stored("reader", lines)
    assert list(folder.iterdir()) == []
    return lines


@pytest.mark.bench
@pytest.mark.parametrize("name", READS)
def test_reads_have_figures_of_both_sides(tmp_path: Path, name: str) -> None:
    assert {line["name"].partition("-")[0] for line in read_lines(tmp_path, name)} == {
        name.partition("-")[0]
    }


@pytest.mark.bench
def test_a_query_sends_fewer_requests_than_a_native_one(tmp_path: Path) -> None:
    lines = read_lines(tmp_path, "read-requests")

    native = [line for line in lines if line["against"] == "native"]
    assert len(native) == 5
    assert all(line["ratio"] < 1 for line in native)


@pytest.mark.bench
def test_tables_of_reads_are_kept_when_asked(tmp_path: Path) -> None:
    arguments = ["--only", "scan-memory", "--keep", "--json"]
    run("reader.py", tmp_path, *arguments)
    (kept,) = tmp_path.iterdir()
    made = sorted(kept.rglob("*"))
    run("reader.py", tmp_path, *arguments)

    assert sorted(kept.rglob("*")) == made


JOBS = (
    *("merge", "divided", "scaling", "growth", "task-memory", "compaction", "memory"),
    *("wide-compaction", "clean-up", "quality", "spark", "checks", "probes", "blobs"),
    "merge-cost",
)
LARGE = ("divided", "scaling")
"""Parts whose figures are of a larger table."""


def job_lines(folder: Path, name: str) -> list[dict[str, Any]]:
    printed = run("maintenance.py", folder, "--json", "--rounds", "1", "--only", name)
    lines: list[dict[str, Any]] = json.loads(printed)["lines"]
    assert_stored("divided" if name in LARGE else "maintenance", lines)
    return lines


@pytest.mark.bench
def test_feeds_have_figures_of_both_sides(tmp_path: Path) -> None:
    lines = json.loads(run("changes.py", tmp_path, "--json", "--rounds", "1"))["lines"]

    assert_stored("changes", lines)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bench
def test_the_first_call_has_figures_of_both_sides(tmp_path: Path) -> None:
    lines = json.loads(run("cold.py", tmp_path, "--json", "--rounds", "1"))["lines"]

    assert_stored("cold", lines)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bench
@pytest.mark.parametrize("name", JOBS)
def test_jobs_have_figures_of_both_sides(tmp_path: Path, name: str) -> None:
    assert job_lines(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bench
def test_a_region_costs_the_same_requests_however_many_there_are(tmp_path: Path) -> None:
    lines = job_lines(tmp_path, "regions")

    counted = [line for line in lines if line["name"] == "region requests"]
    assert all(line["met"] for line in counted)
    looks = [line["note"].partition(" for each")[0] for line in counted if "look" in line["what"]]
    drops = [line["note"] for line in counted if "drops" in line["what"]]
    assert ["2.00 PUT" in note for note in drops] == [True]
    # The first one lists the log: a later one within ten minutes does not.
    assert looks == [
        "3.00 GET, 4.00 HEAD, 1.00 LIST",
        "2.00 GET, 2.00 HEAD, 0.00 LIST",
    ]


@pytest.mark.bench
@pytest.mark.parametrize(
    "part",
    [
        "parse",
        "idle",
        "looks",
        "statements",
        "week",
        "regions",
        "due",
        "due-warm",
        "due-submit",
        "drain",
        "drain-warm",
        "bare",
    ],
)
def test_figures_of_airflow(tmp_path: Path, part: str) -> None:
    few = ["--tables", "2", "--idle-tables", "3", "--singles", "1", "--seconds", "10"]
    few += ["--dags", "3", "--waiting", "3", "--days", "0.2"]
    report = json.loads(run("airflow.py", tmp_path, "--json", "--only", part, *few))
    assert_stored("airflow", report["lines"], f"airflow {part}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bench
@pytest.mark.timeout(900)
def test_merges_and_writes_of_spark(tmp_path: Path) -> None:
    lines = json.loads(run("spark.py", tmp_path, "--json", "--rounds", "1"))["lines"]

    assert_stored("spark", lines, "warm", "size", "write", "batch")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bench
def test_growth_has_a_cell_for_each_call_and_axis(tmp_path: Path) -> None:
    few = ["--regions", "4", "--generations", "4", "--width", "10000", "--rounds", "1"]
    cells = json.loads(run("growth.py", tmp_path, "--json", "--rows", "30000", *few))["cells"]

    stored = json.loads((ROOT / "bench" / "figures" / "growth.json").read_text())["cells"]
    assert [(cell["call"], cell["axis"]) for cell in cells] == [
        (cell["call"], cell["axis"]) for cell in stored
    ]
    for cell in cells:
        assert all(figure["median"] > 0 for figure in (*cell["ms"], *cell["bytes_read"]))
    assert list(tmp_path.iterdir()) == []


def test_a_call_grows_for_a_known_reason_or_not_at_all() -> None:
    stored = json.loads((ROOT / "bench" / "figures" / "growth.json").read_text())["cells"]

    assert [
        (cell["axis"], cell["call"])
        for cell in stored
        if growth.grows(cell) and not growth.has_reason(cell)
    ] == []


@pytest.mark.parametrize("program", [figures.scale, figures.merge_scale])
def test_the_model_of_costs_is_printed(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [program.__name__])

    program.main()

    assert capsys.readouterr().out.strip() in figures.costs()


def test_small_commits_end_with_the_same_rows(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "bench" / "small_commits.py"),
        "--upserts",
        "12",
        "--json",
    ]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path)], check=True, stdout=subprocess.PIPE, text=True
    )

    found = json.loads(done.stdout)
    assert found["plain"]["rows"] == found["memwal"]["rows"]
    assert found["plain"]["versions"] == 2 + 12
    assert found["memwal"]["versions"] < found["plain"]["versions"]
    assert len(found["plain"]["windows_ms"]) == len(found["memwal"]["windows_ms"]) == 12


@pytest.mark.bench
def test_a_load_with_kills_loses_nothing(tmp_path: Path) -> None:
    folder, plots = tmp_path / "folder", tmp_path / "plots"
    folder.mkdir()
    sizes = {"keys": 3_000, "batch": 50, "rate": 500, "flush-seconds": 1, "regions": 2}
    few = {"minutes": 0.2, "kills": 2, "producers": 1, "fleets": 1}
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "bench" / "load.py"), "--json"),
            *(f"--{name}={value}" for name, value in (sizes | few).items()),
            *("--folder", str(folder), "--plots", str(plots)),
        ],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )

    report = json.loads(done.stdout)
    assert [check for check in report["checks"] if not check["held"]] == []
    assert (len(report["checks"]), done.returncode) == (8, 0)
    assert report["ended"] == "the time was over"
    assert report["figures"]["rows acknowledged"] > 0
    assert report["figures"]["lookup, times"] > 0
    assert len(report["kills"]) == 2
    assert sorted(path.name for path in plots.iterdir()) == ["load.json", "load.png", "load.svg"]
    assert list(folder.iterdir()) == []
