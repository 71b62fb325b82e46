"""Number of tasks that a cluster runs at once, by its settings and by what has registered."""

from types import SimpleNamespace
from typing import Any

import pytest

from memwal.errors import InvalidInputError
from memwal.spark import parallelism as module
from memwal.spark.parallelism import UNBOUNDED_TASKS, await_executors, parallelism
from memwal.spark.runner import spark_runner

STANDALONE = {"spark.master": "spark://host:7077"}
DYNAMIC = {"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true"}


def session(settings: dict[str, str], *, cores: int = 2, executors: Any = ()) -> Any:
    """Return what a session tells of its cluster; ``executors`` register by turns."""
    turns = iter(executors)

    def infos() -> list[int]:
        # The driver is one of them.
        return [0] * (1 + next(turns))

    of_java = SimpleNamespace(statusTracker=lambda: SimpleNamespace(getExecutorInfos=infos))
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: of_java), defaultParallelism=cores)
    return SimpleNamespace(sparkContext=context, conf=settings)


@pytest.mark.parametrize(
    ("settings", "cores", "expected"),
    [
        (STANDALONE, 2, 2),
        (STANDALONE, 8, 8),
        (STANDALONE | {"spark.cores.max": "16"}, 2, 16),
        (STANDALONE | {"spark.task.cpus": "4"}, 8, 2),
        (STANDALONE | {"spark.task.cpus": "4"}, 2, 1),
        ({"spark.master": "yarn", "spark.executor.instances": "4"}, 2, 4),
        (
            {
                "spark.master": "k8s://https://host",
                "spark.executor.instances": "4",
                "spark.executor.cores": "3",
            },
            9,
            12,
        ),
        (DYNAMIC, 2, UNBOUNDED_TASKS),
        (DYNAMIC | {"spark.cores.max": "16"}, 2, 16),
        (
            DYNAMIC | {"spark.dynamicAllocation.maxExecutors": str((1 << 31) - 1)},
            2,
            UNBOUNDED_TASKS,
        ),
        (
            DYNAMIC
            | {"spark.dynamicAllocation.maxExecutors": "10", "spark.executor.cores": "2"}
            | {"spark.executor.instances": "1"},
            2,
            20,
        ),
        (DYNAMIC | {"spark.default.parallelism": "5", "spark.task.cpus": "2"}, 5, 5),
        ({"spark.master": "local[6]", "spark.executor.instances": "50"}, 6, 6),
        ({"spark.master": "local-cluster[3,1,1024]", "spark.cores.max": "3"}, 2, 3),
    ],
)
def test_of_a_cluster(settings: dict[str, str], cores: int, expected: int) -> None:
    assert parallelism(session(settings, cores=cores)) == expected


def test_of_a_real_session(spark: Any) -> None:
    assert parallelism(spark) == 2
    assert spark_runner(spark).parallelism() == 2
    assert spark_runner(spark, max_parallelism=7).parallelism() == 7


def test_of_a_stopped_session() -> None:
    stopped: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    with pytest.raises(InvalidInputError):
        parallelism(stopped)


class TestWaiting:
    @pytest.fixture(autouse=True)
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """Time passes only while it is waited."""
        naps: list[float] = []
        clock = SimpleNamespace(monotonic=lambda: sum(naps), sleep=naps.append)
        monkeypatch.setattr(module, "time", clock)
        return naps

    def test_until_no_more_executors_register(self) -> None:
        coming = [*[0] * 50, 1, 1, 3, *[5] * 8, *[8] * 100]
        left = iter(coming)
        await_executors(session(STANDALONE, executors=left))
        assert 8 in coming[: -len(list(left))]

    def test_a_cluster_that_is_full(self, clock: list[float]) -> None:
        await_executors(session(STANDALONE, executors=iter(int, 1)))
        assert clock

    @pytest.mark.parametrize(
        "settings",
        [
            STANDALONE | {"spark.cores.max": "4"},
            STANDALONE | {"spark.default.parallelism": "4"},
            DYNAMIC,
            {"spark.master": "k8s://https://host"},
            {"spark.master": "local[2]"},
        ],
    )
    def test_not_where_the_size_is_known(
        self, settings: dict[str, str], clock: list[float]
    ) -> None:
        await_executors(session(settings))
        assert not clock
