"""What every store must do, whatever it is made of."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from memwal.errors import (
    ConflictError,
    InvalidInputError,
    MemWalError,
    ObjectExistsError,
    ObjectNotFoundError,
)
from memwal.storage.object_store import ObjectStore
from memwal.storage.open import check_put_if_absent

THREADS = 8

BAD_KEYS = (
    "",
    "/a",
    "a/",
    "a//b",
    "..",
    "../a",
    "a/../b",
    "a/..",
    ".",
    "./a",
    "a\0b",
    ".a.tmp",
    "a/.b.tmp",
)


def keys_of(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted(info.key for info in store.list(prefix))


def race(work: Callable[[int], None]) -> None:
    """Run ``work`` in all threads at the same moment and raise what any of them raises."""
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        start.wait()
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(run, number) for number in range(THREADS)]:
            future.result()


@pytest.mark.parametrize(
    "data",
    [b"", b"x", bytes(range(256)) * 40, bytearray(b"array"), memoryview(b"a view")[2:]],
    ids=["empty", "one", "10k", "bytearray", "memoryview"],
)
def test_what_is_created_is_read_back(store: ObjectStore, data: bytes) -> None:
    store.create("a/b/c", data)

    assert store.get("a/b/c") == bytes(data)
    assert isinstance(store.get("a/b/c"), bytes)


def test_a_large_object_survives_put_and_create(store: ObjectStore) -> None:
    data = bytes(range(251)) * 60_000

    store.create("created", data)
    store.put("put", data)

    assert store.get("created") == data
    assert store.get("put") == data


def test_create_leaves_what_is_there(store: ObjectStore) -> None:
    store.create("taken", b"first")

    with pytest.raises(ObjectExistsError):
        store.create("taken", b"second")

    assert store.get("taken") == b"first"


def test_create_takes_a_name_again_after_delete(store: ObjectStore) -> None:
    store.create("a/b", b"first")
    store.delete("a/b")
    store.create("a/b", b"second")

    assert store.get("a/b") == b"second"


def test_chunks_are_one_object(store: ObjectStore) -> None:
    chunk = bytes(range(256)) * 4096
    for chunks in ([], [b"small"], [chunk] * 7, [b"", chunk, b"end"]):
        store.put_chunks("a/large", iter(chunks))
        assert store.get("a/large") == b"".join(chunks)
    assert [info.key for info in store.list("")] == ["a/large"]


def test_chunks_that_end_early_store_nothing(store: ObjectStore) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * (9 << 20)
        raise ValueError("the source went away")

    with pytest.raises((ValueError, MemWalError)):
        store.put_chunks("large", broken())
    assert list(store.list("")) == []


def test_put_replaces(store: ObjectStore) -> None:
    store.put("a", b"first")
    store.put("a", b"2")

    assert store.get("a") == b"2"


def test_replace_needs_the_content_it_expects(store: ObjectStore) -> None:
    store.put("a/b", b"one")

    store.replace("a/b", b"two", expected=b"one")
    with pytest.raises(ConflictError):
        store.replace("a/b", b"three", expected=b"one")

    assert store.get("a/b") == b"two"


def test_replace_needs_an_object(store: ObjectStore) -> None:
    with pytest.raises(ConflictError):
        store.replace("a/b", b"two", expected=b"")

    assert keys_of(store) == []


@pytest.mark.parametrize("read", ["get", "get_range"])
def test_reading_what_is_absent_says_so(store: ObjectStore, read: str) -> None:
    store.put("folder/object", b"x")
    arguments = {} if read == "get" else {"start": 0, "length": 1}

    for key in ("none", "folder", "folder/none", "folder/object/below"):
        with pytest.raises(ObjectNotFoundError, match=key):
            getattr(store, read)(key, **arguments)


def test_head_of_what_is_absent_is_none(store: ObjectStore) -> None:
    store.put("folder/object", b"x")

    for key in ("none", "folder", "folder/none", "folder/object/below"):
        assert store.head(key) is None
        assert not store.exists(key)


def test_head_tells_size_and_time(store: ObjectStore) -> None:
    before = datetime.now(UTC)
    store.create("a/b", b"12345")
    info = store.head("a/b")

    assert info is not None
    assert (info.key, info.size) == ("a/b", 5)
    assert info.modified.utcoffset() == timedelta(0)
    assert abs(info.modified - before) < timedelta(hours=1)
    assert store.exists("a/b")


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, 3, b"012"),
        (4, 1, b"4"),
        (0, 10, b"0123456789"),
        (7, 100, b"789"),
        (10, 1, b""),
        (99, 5, b""),
    ],
)
def test_get_range_reads_what_there_is(
    store: ObjectStore, start: int, length: int, expected: bytes
) -> None:
    store.create("a", b"0123456789")

    assert store.get_range("a", start=start, length=length) == expected


def test_get_range_of_nothing_is_nothing(store: ObjectStore) -> None:
    store.create("a", b"")

    assert store.get_range("a", start=0, length=4) == b""


@pytest.mark.parametrize(("start", "length"), [(-1, 5), (0, 0), (3, -1)])
def test_a_range_that_is_none_is_refused(store: ObjectStore, start: int, length: int) -> None:
    store.create("a", b"0123456789")

    with pytest.raises(InvalidInputError):
        store.get_range("a", start=start, length=length)


def test_list_is_recursive_and_stays_in_its_folder(store: ObjectStore) -> None:
    for key in ("a/1", "a/b/2", "a/b/c/3", "ab/4", "5"):
        store.put(key, key.encode())

    assert keys_of(store) == ["5", "a/1", "a/b/2", "a/b/c/3", "ab/4"]
    assert keys_of(store, "a") == keys_of(store, "a/") == ["a/1", "a/b/2", "a/b/c/3"]
    assert keys_of(store, "a/b") == ["a/b/2", "a/b/c/3"]
    assert {info.key: info.size for info in store.list("a")}["a/b/c/3"] == 7


def test_folders_that_do_not_exist_are_empty(store: ObjectStore) -> None:
    assert keys_of(store) == []
    assert store.list_folders("") == []

    store.put("a/1", b"")

    assert keys_of(store, "none") == keys_of(store, "a/1") == []
    assert store.list_folders("none") == store.list_folders("a/1") == []


def test_list_folders_names_the_next_level(store: ObjectStore) -> None:
    for key in ("top", "b/x/1", "a/x/deep/1", "a/y/1", "a/file"):
        store.put(key, b"")

    assert store.list_folders("") == ["a", "b"]
    assert store.list_folders("a") == store.list_folders("a/") == ["x", "y"]
    assert store.list_folders("a/x") == ["deep"]
    assert store.list_folders("a/y") == []


@pytest.mark.few(3)
def test_more_objects_than_a_page_are_listed_and_deleted(store: ObjectStore) -> None:
    keys = [f"many/{number:04d}" for number in range(1_203)]
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda key: store.put(key, b"x"), keys))
    store.put("other", b"stays")

    assert keys_of(store, "many") == keys
    store.delete_many(keys[:1_101])
    assert keys_of(store, "many") == keys[1_101:]
    store.delete_folder("many")
    assert keys_of(store) == ["other"]


def test_deletes_are_idempotent(store: ObjectStore) -> None:
    for key in ("a/1", "a/2", "a/3", "b"):
        store.put(key, b"")

    store.delete("a/1")
    store.delete("a/1")
    store.delete("a")
    store.delete("none/at/all")
    store.delete_many(iter(["a/2", "a/2", "none", "b/below"]))
    store.delete_many([])
    assert keys_of(store) == ["a/3", "b"]

    store.delete_folder("a/")
    store.delete_folder("a")
    store.delete_folder("none/at/all")
    assert keys_of(store) == ["b"]


def test_a_folder_can_be_written_again_after_it_was_deleted(store: ObjectStore) -> None:
    store.create("a/b/1", b"old")
    store.delete_folder("a")

    store.create("a/b/1", b"new")
    store.put("a/b/2", b"new")

    assert keys_of(store) == ["a/b/1", "a/b/2"]
    assert store.get("a/b/1") == b"new"


def test_delete_folder_keeps_its_neighbours(store: ObjectStore) -> None:
    for key in ("gen_1/data/x", "gen_1/y", "gen_10/z", "gen_1.txt"):
        store.put(key, b"")

    store.delete_folder("gen_1")

    assert keys_of(store) == ["gen_1.txt", "gen_10/z"]


def test_the_root_is_not_a_folder_to_delete(store: ObjectStore) -> None:
    store.put("a", b"")

    with pytest.raises(InvalidInputError):
        store.delete_folder("")

    assert keys_of(store) == ["a"]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_bad_keys_are_refused_everywhere(store: ObjectStore, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.create(key, b"x"),
        lambda: store.put(key, b"x"),
        lambda: store.replace(key, b"x", expected=b""),
        lambda: store.get(key),
        lambda: store.get_range(key, start=0, length=1),
        lambda: store.head(key),
        lambda: store.exists(key),
        lambda: store.delete(key),
        lambda: store.delete_many([key]),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError):
            call()

    assert keys_of(store) == []


@pytest.mark.parametrize("prefix", ["/", "/a", "..", "a/../..", "a//", "../table"])
def test_bad_prefixes_are_refused_everywhere(store: ObjectStore, prefix: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.list(prefix),
        lambda: store.list_folders(prefix),
        lambda: store.delete_folder(prefix),
        lambda: store.sync(prefix),
        lambda: store.delete_stale_temporaries(prefix, older_than=timedelta(0)),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError):
            call()


def test_odd_names_are_kept_as_they_are(store: ObjectStore) -> None:
    keys = sorted(["a b/ü.x", "a/%20%.y", "a/#1x", "a/x+y=z&", "a/~", "a/...", "a/.hidden"])
    for key in keys:
        store.create(key, key.encode())

    assert keys_of(store) == keys
    for key in keys:
        assert store.get(key) == key.encode()
        assert store.exists(key)
    store.delete_many(keys)
    assert keys_of(store) == []


def test_of_many_creators_of_a_key_one_wins(store: ObjectStore) -> None:
    keys = [f"wal/{number:03d}" for number in range(40)]
    winners: dict[str, list[int]] = {key: [] for key in keys}

    def create(number: int) -> None:
        for key in keys:
            try:
                store.create(key, f"{number}".encode())
            except ObjectExistsError:
                continue
            winners[key].append(number)

    race(create)

    assert {key: len(won) for key, won in winners.items()} == dict.fromkeys(keys, 1)
    assert {key: store.get(key) for key in keys} == {
        key: f"{won[0]}".encode() for key, won in winners.items()
    }
    assert keys_of(store) == keys


def test_no_replacement_is_lost(store: ObjectStore) -> None:
    store.put("counter", b"0")
    each = 15

    def add(_number: int) -> None:
        for _ in range(each):
            while True:
                seen = store.get("counter")
                try:
                    store.replace("counter", str(int(seen) + 1).encode(), expected=seen)
                except ConflictError:
                    continue
                break

    race(add)

    assert store.get("counter") == str(THREADS * each).encode()


def test_readers_never_see_half_an_object(store: ObjectStore) -> None:
    contents = {bytes([letter]) * 50_000 for letter in b"abcdefgh"}
    ordered = sorted(contents)
    store.put("a", ordered[0])
    seen: set[bytes] = set()

    def work(number: int) -> None:
        for turn in range(12):
            if number % 2:
                store.put("a", ordered[(number + turn) % len(ordered)])
            else:
                seen.add(store.get("a"))

    race(work)

    assert seen <= contents


def test_creating_and_deleting_folders_at_once_goes_well(store: ObjectStore) -> None:
    def work(number: int) -> None:
        for turn in range(15):
            if number == 0:
                store.delete_folder("shared")
            else:
                store.create(f"shared/{number}/{turn}/x", b"x")

    race(work)
    store.delete_folder("shared")

    assert keys_of(store) == []


def test_sync_and_barrier_may_be_called_on_every_store(store: ObjectStore) -> None:
    store.create("a/b/c", b"x")
    store.sync("a/b")
    store.sync("")
    store.barrier()

    assert store.get("a/b/c") == b"x"


def test_put_if_absent_is_found_and_leaves_nothing(store: ObjectStore) -> None:
    store.put("a", b"")

    check_put_if_absent(store)

    assert keys_of(store) == ["a"]
    assert store.list_folders("") == []
