"""Imports go down only: no part of the house knows of one above it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[1]
SOURCES = ("memwal", "plugins/memwal_airflow", "spark_apps", "dags")

# From the ground up. What is named here holds for all that is inside, unless that has a floor of
# its own; a name that is of no floor is a mistake.
FLOORS = (
    (
        "memwal.boot_clock",
        "memwal.durations",
        "memwal.errors",
        "memwal.extras",
        "memwal.free_memory",
        "memwal.given_data",
        "memwal.telemetry.attributes",
        "memwal.version",
    ),
    ("memwal.format",),
    ("memwal.storage",),
    ("memwal.region", "memwal.table_index"),
    ("memwal.memtable",),
    ("memwal.reader",),
    ("memwal.writer",),
    (
        "memwal.maintenance",
        "memwal.quality",
        "memwal.reads",
        "memwal.telemetry.harmless",
        "memwal.telemetry.job_list",
        "memwal.telemetry.job_metrics",
        "memwal.telemetry.spans",
        "memwal.telemetry.tracing",
    ),
    ("memwal.aio", "memwal.region_change", "memwal.rights", "memwal.setup", "memwal.table"),
    ("memwal", "memwal.catalog"),
    ("memwal.fleet", "memwal.spark"),
    ("memwal.telemetry",),
    ("memwal.cli", "memwal_airflow", "spark_apps"),
    ("memwal.__main__",),
    ("dags",),
)
FLOOR_OF = {name: number for number, names in enumerate(FLOORS) for name in names}
OURS = {name.partition(".")[0] for name in FLOOR_OF}


def floor_of(module: str) -> int:
    """The floor of the nearest name above; ``memwal`` itself is the front door and nothing more."""
    name = module
    while name not in FLOOR_OF and "." in name:
        name = name.rpartition(".")[0]
    assert name != "memwal" or module == "memwal", f"{module} has no floor: add it to FLOORS"
    return FLOOR_OF[name]


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and module of every import, wherever it stands, but not those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                for alias in node.names:
                    inside = f"{module}.{alias.name}"
                    yield node.lineno, inside if is_module(inside) else module
        yield from imported(node)


def is_module(name: str) -> bool:
    path = HOUSE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def modules() -> Iterator[tuple[str, Path]]:
    for source in SOURCES:
        root = (HOUSE / source).parent
        for path in sorted((HOUSE / source).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts).removesuffix(".__init__"), path


def test_imports_go_down() -> None:
    up = [
        f"{path.relative_to(HOUSE)}:{line} imports {name}"
        for module, path in modules()
        for line, name in imported(ast.parse(path.read_text()))
        if name.partition(".")[0] in OURS and floor_of(name) > floor_of(module)
    ]
    assert up == []


@pytest.mark.parametrize("name", sorted(FLOOR_OF))
def test_what_is_named_exists(name: str) -> None:
    assert is_module(name) or (HOUSE / "plugins" / name).is_dir()
