"""What importing the library loads."""

import re
from pathlib import Path

import pytest
from support.processes import run_python

ROOT = Path(__file__).resolve().parents[1]

HEAVY = (
    "airflow",
    "alembic",
    "datafusion",
    "lancedb",
    "matplotlib",
    "opentelemetry.sdk",
    "pandas",
    "pyspark",
    "rich",
    "sqlalchemy",
    "typer",
)
"""Installed for tests only, or for other parts of the library."""

# Lance and Arrow take pandas if there is one, and do without if not.
WITHOUT = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


def run(code: str) -> list[str]:
    """Run a program in an interpreter of its own and return its lines."""
    return run_python(code).stdout.splitlines()


def test_a_producer_works_with_only_what_its_lock_names(tmp_path: Path) -> None:
    code = f"""{WITHOUT}
import asyncio
import memwal

for what in (memwal.open, memwal.WriterOptions, memwal.RegionSpec):
    assert callable(what)

import memwal.aio
import pyarrow as pa

schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
spec = memwal.RegionSpec.bucket("id", 2)
table = memwal.create({str(tmp_path)!r} + "/table", schema, primary_key=["id"], region_spec=spec)
with table.writer() as writer:
    writer.upsert(pa.table({{"id": [1, 2, 3], "n": [1, 2, 3]}}, schema=schema))
    writer.delete(pa.array([2]))
    print(writer.scan().to_table().num_rows)

async def main():
    async with memwal.aio.open_writer(table) as writer:
        await writer.upsert(pa.table({{"id": [4], "n": [4]}}, schema=schema))
        print((await writer.lookup(pa.array([4]))).num_rows)

asyncio.run(main())
print(table.scan().to_table().num_rows)
print(table.lookup(pa.array([1])).count_rows())
files = {{name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}}
print(*sorted({{name.split(".")[0] for name in files if "site-packages" in files[name]}}))
"""
    *rows, modules_loaded = run(code)
    assert rows == ["2", "1", "3", "1"]
    loaded = set(modules_loaded.split())
    lock = (ROOT / "requirements" / "producer.lock").read_text()
    named = set(re.findall(r"^([a-z0-9-]+)==", lock, flags=re.MULTILINE))
    # Each as it is imported, and what Lance and Arrow take where it happens to be.
    modules = {name.replace("-", "_") for name in named}
    modules |= {"lance", "google", "opentelemetry"}
    assert loaded <= modules | {"_distutils_hack", "cloudpickle", "dateutil", "six"}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("memwal", {"lance", "pyarrow"}),
        # Airflow's tasks import these while they are parsed.
        ("memwal.fleet", {"lance", "pyarrow", "numpy", "sqlalchemy", "pyspark", "airflow", "rich"}),
        ("memwal; memwal.open", {"importlib.metadata", "html", "email", "difflib"}),
        ("memwal.catalog; memwal.catalog.read_snapshot", {"sqlalchemy", "alembic"}),
    ],
)
def test_a_package_loads_nothing_heavy(module: str, absent: set[str]) -> None:
    loaded = run(f"import sys; import {module}; print(*sys.modules)")
    assert not absent & set(loaded[0].split())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("pass", "0 True False"),
        # What a program decided stays so.
        ("gc.disable()", "0 False False"),
        pytest.param("gc.freeze()", "1 True True", marks=pytest.mark.slow),
    ],
)
def test_the_garbage_collector_rests_while_modules_load(before: str, after: str) -> None:
    code = f"""
import gc
import memwal

{before}
phases = set()
gc.callbacks.append(lambda phase, info: phases.add(phase))
memwal.open
gc.callbacks.clear()
print(int("start" in phases), gc.isenabled(), gc.get_freeze_count() > 0)
"""
    assert run(code) == [after]


def test_jobs_do_not_load_the_models_of_namespaces(tmp_path: Path) -> None:
    """Generated code, whose import costs more than the first merge itself."""
    code = f"""
import sys
import lance
import memwal
import pyarrow as pa

rows = pa.table({{"id": range(9), "n": range(9)}}, schema=pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int64())]
))
lance.write_dataset(rows, {str(tmp_path / "table")!r})
spec = memwal.RegionSpec.bucket("id", 2)
table = memwal.enable({str(tmp_path / "table")!r}, region_spec=spec, primary_key=["id"])
for _ in range(2):
    table.upsert({{"id": list(range(5, 15)), "n": [7] * 10}})
    table.merge()
table.build_indexes()
table.build_snapshot()
table.compact()
table.collect_garbage()
print(table.count_rows(), *(name for name in sys.modules if "lance_namespace" in name))
"""
    assert run(code) == ["15"]
