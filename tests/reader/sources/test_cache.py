"""What is kept, and what is forgotten first."""

import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from memwal.errors import InvalidInputError
from memwal.reader.sources import cache as lru_module
from memwal.reader.sources.cache import CacheTag, LruCache, SegmentTag


def test_the_longest_unused_goes_first() -> None:
    made: list[str] = []

    def get(cache: LruCache[str], key: str) -> str:
        return cache.get(key, lambda: (made.append(key), key * 2)[1])

    cache: LruCache[str] = LruCache(6, len)
    assert [get(cache, key) for key in "abca"] == ["aa", "bb", "cc", "aa"]
    assert made == ["a", "b", "c"]
    get(cache, "d")
    assert cache.use("b") is None
    assert cache.use("a") == "aa"
    get(cache, "b")
    assert made == ["a", "b", "c", "d", "b"]


def test_one_that_is_too_heavy_is_kept_until_the_next() -> None:
    cache: LruCache[str] = LruCache(3, len)
    cache.get("a", lambda: "x" * 100)
    assert cache.use("a") is not None
    cache.get("b", lambda: "x")
    assert cache.use("a") is None
    assert cache.use("b") == "x"


def test_a_value_can_be_replaced() -> None:
    cache: LruCache[str] = LruCache(4, len)
    cache.put("a", "xx")
    cache.put("b", "x")
    cache.put("a", "yyy")
    assert cache.use("b") == "x"
    assert cache.use("a") == "yyy"
    cache.put("c", "x")
    assert cache.use("b") is None
    assert cache.use("a") == "yyy"


def test_all_kinds_share_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not asked for longest goes first, whoever keeps it."""
    one, other = LruCache[str](100, len), LruCache[str](100, len)
    counted = LruCache[str](100)
    counted.get("x", lambda: "x")
    monkeypatch.setattr(lru_module, "all_caches", lambda: [one, other, counted])
    # An entry takes a kilobyte beside its value: there is room for two.
    monkeypatch.setenv("MEMWAL_READ_CACHE_BYTES", "2053")
    one.get("a", lambda: "aaa")
    other.get("b", lambda: "bb")
    one.get("a", lambda: "never")
    other.get("c", lambda: "cc")
    assert one.values() == ["aaa"]
    assert other.values() == ["cc"]
    one.get("d", lambda: "d" * 5000)
    assert one.values() == ["d" * 5000]
    assert other.values() == []
    assert counted.values() == ["x"]


def test_a_budget_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMWAL_READ_CACHE_BYTES", "1 GB")
    with pytest.raises(InvalidInputError, match="MEMWAL_READ_CACHE_BYTES"):
        LruCache[str](100, len).get("a", lambda: "a")


def test_threads_leave_it_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they ask for, replace, and forget at once."""
    caches = [LruCache[str](50, len), LruCache[str](1000, len)]
    segments = [SegmentTag("a", str(number)) for number in range(5)]
    monkeypatch.setattr(lru_module, "all_caches", lambda: caches)
    monkeypatch.setenv("MEMWAL_READ_CACHE_BYTES", "12000")

    def live(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(6_000):
            cache, segment = chance.choice(caches), chance.choice(segments)
            number = chance.randrange(10)
            key, value = (f"a/_indices/{segment.uuid}", number), f"{segment.uuid}-{number}"
            act = chance.random()
            if act < 0.1:
                cache.invalidate([segment])
            elif act < 0.2:
                cache.put(key, value)
            else:
                assert cache.get(key, lambda value=value: value) == value  # type: ignore[misc]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(live, range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert sum(cache.nbytes for cache in caches) <= 12000
    for cache in caches:
        found = cache.values()
        assert cache.nbytes == sum(1024 + len(value) for value in found)
        names: set[CacheTag] = {SegmentTag("a", value.split("-")[0]) for value in found}
        assert cache.tags() == names
        cache.invalidate(segments)
        assert (cache.values(), cache.nbytes) == ([], 0)
