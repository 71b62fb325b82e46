import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from memwal_airflow.triggers.readings import (
    SharedReadings,
    TableReading,
    TableSource,
    shared_readings,
)

from memwal.errors import StoreUnavailableError
from memwal.fleet.polls import ReadLimits

TABLE = TableSource(table_uri="/t")


class Looks:
    """Looks that are numbers, as many at once as are asked for, by a clock that is set by hand."""

    def __init__(self) -> None:
        self.taken: list[tuple[TableSource, frozenset[str] | None]] = []
        self.error: Exception | None = None
        self.at_once = self.most = 0

    async def __call__(self, source: TableSource, *, regions: frozenset[str] | None) -> Any:
        self.taken.append((source, regions))
        number = len(self.taken)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0.001)
        self.at_once -= 1
        if self.error is not None:
            raise self.error
        return TableReading(
            status=number, policy=None, regions_in_backoff=None, last_runs={}, at=None
        )  # type: ignore[arg-type]


def run(work: Callable[[SharedReadings, Looks], Coroutine[Any, Any, Any]], **limits: Any) -> Any:
    async def go() -> Any:
        looks = Looks()
        return await work(SharedReadings(read=looks, limits=ReadLimits(**limits)), looks)

    return asyncio.run(go())


def test_64_that_wait_share_one_look_per_interval() -> None:
    async def work(shared: SharedReadings, looks: Looks) -> None:
        async def wait(start: float) -> list[Any]:
            async with shared.watching(TABLE, regions=None) as watch:
                await asyncio.sleep(start)
                return [(await watch.next(every=every)).status for every in (60, 0.2, 0.2)]

        found = await asyncio.gather(*(wait(number / 1000) for number in range(64)))
        assert found == [[1, 2, 3]] * 64
        assert len(looks.taken) == 3
        assert len(shared) == 0

    run(work)


def test_each_sees_a_look_once_and_none_that_is_older_than_its_interval() -> None:
    async def work(shared: SharedReadings, looks: Looks) -> None:
        async with (
            shared.watching(TABLE, regions=None) as quick,
            shared.watching(TABLE, regions=None) as slow,
        ):
            assert [(await quick.next(every=0.01)).status for _ in range(3)] == [1, 2, 3]
            assert (await slow.next(every=10)).status == 3
            await asyncio.sleep(0.05)
            assert (await slow.next(every=0.01)).status == 4

    run(work)


def test_an_interval_that_is_shorter_than_a_look_ends_too() -> None:
    async def work(shared: SharedReadings, looks: Looks) -> None:
        async with asyncio.timeout(5), shared.watching(TABLE, regions=None) as watch:
            assert [(await watch.next(every=0)).status for _ in range(3)] == [1, 2, 3]

    run(work)


def test_what_is_looked_at_is_what_is_wanted_together() -> None:
    async def work(shared: SharedReadings, looks: Looks) -> None:
        async with shared.watching(TABLE, regions=frozenset("a")) as one:
            await one.next(every=0.01)
            async with shared.watching(TABLE, regions=frozenset("b")) as two:
                # What is known does not tell of its region, so it waits for the next one.
                assert (await two.next(every=0.05)).status == 2
                async with shared.watching(TABLE, regions=None):
                    assert (await one.next(every=60)).status == 2
                    assert (await one.next(every=0.01)).status == 3
        wanted = [regions for _, regions in looks.taken]
        assert wanted == [frozenset("a"), frozenset("ab"), None]

    run(work)


def test_tables_are_apart_and_not_too_many_at_once() -> None:
    async def work(shared: SharedReadings, looks: Looks) -> None:
        async def wait(number: int) -> None:
            source = TableSource(table_uri=f"/t{number}")
            async with shared.watching(source, regions=None) as watch:
                await watch.next(every=1)

        await asyncio.gather(*map(wait, range(10)))
        assert len({source for source, _ in looks.taken}) == 10
        assert looks.most == 2

    run(work, max_reads=2)


def test_a_failure_is_told_to_all_and_tried_again_after_the_interval() -> None:
    async def work(shared: SharedReadings, looks: Looks) -> None:
        looks.error = StoreUnavailableError("away")

        async def wait() -> Any:
            async with shared.watching(TABLE, regions=None) as watch:
                with pytest.raises(StoreUnavailableError):
                    await watch.next(every=0.05)
                looks.error = None
                return (await watch.next(every=0.05)).status

        assert set(await asyncio.gather(*(wait() for _ in range(64)))) == {2}
        assert len(looks.taken) == 2

    run(work)


def test_one_that_stops_waiting_does_not_stop_the_others() -> None:
    async def work(shared: SharedReadings, looks: Looks) -> None:
        async def wait() -> Any:
            async with shared.watching(TABLE, regions=None) as watch:
                return (await watch.next(every=1)).status

        first, second = (asyncio.ensure_future(wait()) for _ in range(2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        # The read ends with the trigger that waited for it, and the next one reads again.
        assert await second == 2

    run(work)


def test_those_of_a_loop_that_is_over_are_forgotten() -> None:
    async def own() -> weakref.ref[SharedReadings]:
        assert shared_readings() is shared_readings()
        return weakref.ref(shared_readings())

    found = asyncio.run(own())
    gc.collect()
    assert found() is None
