"""Which tests run in one process, one after another, and which tests begin first."""

from typing import Any

import pytest

# Tests of one Spark session are run by one process: each session costs a JVM and half a minute.
SPARK = ("spark/",)
# Default tests of one folder that are run by one process: the chart has dozens of renderings, each
# of which is made once. Slow ones may take long, and are better divided.
WHOLE = (*SPARK, "helm/")
# Default tests that wait long. They begin first, so that no process waits for them at the end.
LONGEST = (
    *SPARK,
    "jobs/faults/",
    "interop/",
    "writer/",
    "plugins/",
    "examples/",
    "catalog/",
)
# Real Airflows run one after another: two at once starve each other.
AIRFLOW = ("dags/", "plugins/", "examples/test_airflow_demo.py")
# Each slow case of these stands alone, and takes long; other modules share servers and tables.
INDEPENDENT = ("jobs/faults/", "power_cuts/", "simulation/", "histories/", "hostile/", "fuzz/")
# Slow cases of these wait for most of their time, or take minutes. pytest-xdist begins with the
# groups of most tests; of groups with as many tests, these come first, so that no process waits
# at the end.
LASTING = ("histories/", "writer/test_model.py", "packaging/", "test_tutorial.py")


def rank(path: str) -> int:
    """Return the place of a file of tests in the order of the default run."""
    starts = (place for place, start in enumerate(LONGEST) if path.startswith(start))
    return next(starts, len(LONGEST))


def group_of(nodeid: str, *, slow: bool) -> str:
    """Return the name of the group of a test; ``slow`` in a run of slow or soak tests."""
    path = nodeid.partition("::")[0].removeprefix("tests/")
    if slow and path.startswith(INDEPENDENT):
        return nodeid
    if slow and path.startswith(AIRFLOW):
        return "airflow"
    whole = SPARK if slow else WHOLE
    return next((folder for folder in whole if path.startswith(folder)), path)


def is_slow_run(expression: str) -> bool:
    """Return whether a run with this expression of markers is one of slow or soak tests."""
    return expression.startswith(("slow", "soak"))


class LastingFirst:
    """Plugin of a slow run that moves the longest cases before all others, whatever shuffled."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort the tests; the order is otherwise kept."""
        items.sort(key=lambda item: not item.nodeid.removeprefix("tests/").startswith(LASTING))


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of pytest-xdist that sends each group to one process.

    The marker ``xdist_group`` has no effect with pytest 9.2: xdist 3.8 appends the group to the
    id of a test, which can no longer be changed.
    """
    from xdist.scheduler import LoadScopeScheduling

    slow = is_slow_run(config.getoption("markexpr"))

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid, slow=slow)

    return GroupScheduling(config, log)
