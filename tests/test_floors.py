"""The layout: a package imports packages of earlier rows only, without circles, and stays small.

Imports inside functions and under ``TYPE_CHECKING`` count as well.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {
    "memwal": ROOT / "memwal",
    "memwal_airflow": ROOT / "plugins" / "memwal_airflow",
    "spark_apps": ROOT / "spark_apps",
    "dags": ROOT / "dags",
}
MAX_MODULES = 12
MAX_LINES = 560

# From the ground up. A package may import itself and packages of earlier rows; packages in one row
# do not import each other.
ROWS = (
    ("memwal.errors", "memwal.version", "memwal.lance_log"),
    ("memwal.util",),
    ("memwal.boundary",),
    ("memwal.format",),
    ("memwal.storage",),
    ("memwal.inputs",),
    ("memwal.permissions",),
    ("memwal.telemetry", "memwal.expressions"),
    ("memwal.region",),
    ("memwal.base_table",),
    ("memwal.lsm",),
    ("memwal.reader",),
    ("memwal.search", "memwal.feed"),
    ("memwal.writer",),
    ("memwal.quality",),
    ("memwal.jobs",),
    ("memwal.queries",),
    ("memwal.reading_writer",),
    ("memwal.table",),
    ("memwal.create_table", "memwal.resharding", "memwal.aio", "memwal.quarantine_review"),
    ("memwal.catalog",),
    ("memwal.fleet", "memwal.spark"),
    ("memwal",),
    ("memwal.exporter",),
    ("memwal.cli", "memwal_airflow", "spark_apps"),
    ("memwal.__main__",),
    ("dags",),
)
ROW_OF = {name: number for number, names in enumerate(ROWS) for name in names}


def package_of(module: str) -> str:
    """Return the entry of ``ROWS`` that a module belongs to."""
    name = module
    while name not in ROW_OF and "." in name:
        name = name.rpartition(".")[0]
    assert name != "memwal" or module == "memwal", f"{module} has no row: add it to ROWS"
    return name


def modules() -> dict[str, Path]:
    """Return the path of each module by its dotted name; a package stands for its ``__init__``."""
    paths = {}
    for name, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            if "node_modules" in path.parts:
                continue
            dotted = ".".join((name, *path.relative_to(folder).with_suffix("").parts))
            paths[dotted.removesuffix(".__init__")] = path
    return paths


MODULES = modules()


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and module of every import of one of our modules, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module), level=0):
                inside = [f"{module}.{alias.name}" for alias in node.names]
                names = [name if name in MODULES else module for name in inside]
            case _:
                continue
        for name in names:
            if name.partition(".")[0] in SOURCES:
                yield node.lineno, name


@cache
def imports_by_module() -> dict[str, list[tuple[int, str]]]:
    """Return lines and names of the imports of each module."""
    return {module: sorted(imported(path)) for module, path in MODULES.items()}


def circle(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names along one circle of a graph, or nothing when it has none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        names: list[str] = error.args[1]
        return names
    return []


def test_imports_point_down() -> None:
    upward = [
        f"{MODULES[module].relative_to(ROOT)}:{line} imports {name}"
        for module, imports in imports_by_module().items()
        for line, name in imports
        if (package := package_of(module)) != (other := package_of(name))
        and ROW_OF[other] >= ROW_OF[package]
    ]
    assert upward == []


def test_modules_have_no_circle() -> None:
    edges = {
        module: {name for _, name in imports} - {module}
        for module, imports in imports_by_module().items()
    }
    assert circle(edges) == []


def test_packages_have_no_circle() -> None:
    """Packages at every depth: ``memwal.jobs.gc`` and ``memwal.jobs`` are two."""

    def package(module: str) -> str:
        parent = module.rpartition(".")[0]
        is_package = MODULES[module].name == "__init__.py"
        return module if is_package or parent in SOURCES else parent

    edges = defaultdict(set)
    for module, imports in imports_by_module().items():
        for _, name in imports:
            if name in MODULES and package(name) != package(module):
                edges[package(module)].add(package(name))
    assert circle(edges) == []


def test_packages_stay_small() -> None:
    sizes = Counter(
        path.parent for path in MODULES.values() if path.name not in ("__init__.py", "__main__.py")
    )
    large = {str(folder.relative_to(ROOT)): n for folder, n in sizes.items() if n > MAX_MODULES}
    assert large == {}


def test_modules_stay_small() -> None:
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in MODULES.values()
        if "_proto" not in path.parts
    }
    assert {path: n for path, n in lines.items() if n > MAX_LINES} == {}


@pytest.mark.parametrize("name", sorted(ROW_OF))
def test_every_row_names_what_exists(name: str) -> None:
    assert name in MODULES or SOURCES.get(name, Path()).is_dir()
