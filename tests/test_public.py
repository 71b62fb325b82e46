"""What is public is changed deliberately: see docs/compatibility.md."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest

import memwal

ROOT = Path(__file__).resolve().parents[1]

PUBLIC = {
    "memwal": """
        MemWalError RegionSpec Table WritePosition Writer WriterOptions __version__
        add_region_spec aio create enable errors maintain open register_credentials retire_region
    """,
    "memwal.catalog": """
        BacklogSample Catalog JobRun ManagedTable Policy Pruned RunState TableFolder TableState
        read_snapshot
    """,
    "memwal.fleet": """
        Budget Fleet DiscoveredTable JobRequest JobSpec Outcome Runtime SkipReason Skipped Survey
        TableOverview find_tables maintain open_managed overview register_folder register_tables
        run_job run_recorded survey
    """,
    "memwal.spark": "register release",
}
"""Module to the names that it promises. Add what is new; what goes is announced first."""

TABLE = """
    append applied at at_most base build_indexes build_snapshot changes check_quality checkpoint
    choose_indexes collect_garbage compact consumer copy_to count_rows delete explain explain_merge
    fresh head list_indices location lookup merge primary_key recover region_ids region_spec
    reset_writer_defaults restore scan schema search search_hybrid search_text set_writer_defaults
    start_region_over status take_blobs to_arrow to_dataset to_pandas to_polars upsert uri verify
    version writer writer_defaults
"""
"""Methods and attributes of a table."""


@pytest.mark.parametrize("name", PUBLIC)
def test_the_names_of_a_module(name: str) -> None:
    module = import_module(name)
    assert sorted(module.__all__) == sorted(PUBLIC[name].split())
    for promised in module.__all__:
        assert getattr(module, promised) is not None


def test_what_a_table_has(table: memwal.Table) -> None:
    assert {name for name in dir(table) if not name.startswith("_")} == set(TABLE.split())


def test_errors_are_public_and_of_one_family() -> None:
    errors = [
        one
        for one in vars(memwal.errors).values()
        if inspect.isclass(one) and issubclass(one, Exception)
    ]
    assert len(errors) > 15
    for error in errors:
        assert issubclass(error, memwal.MemWalError)
        assert error.__doc__


def test_the_version_is_semantic_and_in_the_changelog() -> None:
    numbers = memwal.__version__.split(".")
    assert len(numbers) == 3
    assert all(number.isdigit() for number in numbers)
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{memwal.__version__}]" in changes
