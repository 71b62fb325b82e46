"""Reading objects before their turn."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stores.faulty_store import FaultyStore, skip_waits

from memwal.errors import StoreAccessError
from memwal.lsm.wal.prefetch import read_ahead
from memwal.storage.open import open_store


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    store = FaultyStore(open_store(tmp_path / "table", durable=False))
    store.is_local = False
    for number in range(400):
        store.inner.put(f"log/{number}", f"{number}".encode())
    return store


def objects(*numbers: int, size: int = 1) -> Iterator[tuple[str, int]]:
    return ((f"log/{number}", size) for number in numbers)


@pytest.mark.parametrize("is_local", [False, True])
def test_keeps_the_order_and_yields_none_for_missing_objects(
    store: FaultyStore, is_local: bool
) -> None:
    store.is_local = is_local
    wanted = [3, 1, 1000, 2, *range(300)]

    found = list(read_ahead(store, objects(*wanted), max_bytes=1000))

    assert found == [f"{n}".encode() if n < 400 else None for n in wanted]


def test_no_objects(store: FaultyStore) -> None:
    assert list(read_ahead(store, objects(), max_bytes=1)) == []


@pytest.mark.parametrize(
    ("size", "most", "is_local"),
    [(10, 10, False), (60, 1, False), (1000, 1, False), (0, 256, False), (0, 0, True)],
)
def test_reads_up_to_max_bytes(store: FaultyStore, size: int, most: int, is_local: bool) -> None:
    store.is_local = is_local
    pause = store.pause("get", "log/0")
    taken = []

    def counted() -> Iterator[tuple[str, int]]:
        for number in range(400):
            taken.append(number)
            yield f"log/{number}", size

    found = read_ahead(store, counted(), max_bytes=100)
    pause.release()
    for number in range(5):
        assert next(found) == f"{number}".encode()
        # What is waiting, the one that was just given, and the one that did not fit.
        assert len(taken) - number <= most + 2

    found.close()
    assert len(taken) < 400


def test_its_early_end_waits_for_no_read(store: FaultyStore) -> None:
    """Python may end it while it starts a thread, and then waits for another one for ever."""
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def read() -> None:
        begun.set()
        may_end.wait(240)
        ended.set()

    store.act("get", read, key="log/1")
    found = read_ahead(store, objects(0, 1), max_bytes=1000)
    assert next(found) == b"0"
    assert begun.wait(240)
    found.close()
    assert not ended.is_set()
    may_end.set()


def test_reads_concurrently(store: FaultyStore) -> None:
    """The first read stands still until a later one was made."""
    first = store.pause("get", "log/0")
    later = store.pause("get", "log/9")
    found = read_ahead(store, objects(*range(20)), max_bytes=1000)

    def release(number: int) -> int:
        later.wait_until_reached()
        first.release()
        later.release()
        return number

    def wanted() -> Iterator[tuple[str, int]]:
        yield from objects(*range(15))
        release(0)
        yield from objects(*range(15, 20))

    found = read_ahead(store, wanted(), max_bytes=1000)

    assert list(found) == [f"{n}".encode() for n in range(20)]


def test_retries_a_failed_read(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_waits(monkeypatch)
    store.fail("get", times=4)

    assert list(read_ahead(store, objects(1), max_bytes=1)) == [b"1"]


def test_raises_a_failed_read_in_order(store: FaultyStore) -> None:
    store.fail("get", "log/2", StoreAccessError("no"), times=1000)
    found = read_ahead(store, objects(*range(10)), max_bytes=1000)

    assert [next(found), next(found)] == [b"0", b"1"]
    with pytest.raises(StoreAccessError):
        next(found)
