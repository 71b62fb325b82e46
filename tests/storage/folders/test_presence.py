"""What is in a table is not taken for absent while the table is moved away and back."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.faults.between_calls import away_between

from memwal.errors import ObjectNotFoundError, StoreUnavailableError
from memwal.format.paths import VERSIONS_DIR
from memwal.storage.folders.presence import TablePresence
from memwal.storage.local import LocalStore

READS: dict[str, Callable[[LocalStore], Any]] = {
    "get": lambda store: store.get("a/b/1"),
    "get_range": lambda store: store.get_range("a/b/1", start=1, length=1),
    "head": lambda store: store.head("a/b/1"),
    "exists": lambda store: store.exists("a/b/1"),
    "list": lambda store: sorted(info.key for info in store.list("a")),
    "list_folders": lambda store: store.list_folders("a"),
    "list_links": lambda store: [link.key for link in store.list_links("a")],
}


def absent(store: LocalStore, read: str) -> bool:
    """Whether a read finds nothing."""
    with suppress(ObjectNotFoundError):
        return not READS[read](store)
    return True


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    for folder in ("a/b", "linked", VERSIONS_DIR):
        (path / folder).mkdir(parents=True)
    (path / "a/b/1").write_bytes(b"one")
    (path / "linked/2").write_bytes(b"two")
    (path / "a/c").symlink_to(path / "linked")
    return path


@pytest.mark.parametrize("read", READS)
def test_a_move_during_a_read(root: Path, read: str) -> None:
    """At every moment the answer is the right one, or an error."""
    store = LocalStore(root)
    right = READS[read](store)
    with away_between(root, -1, -1) as calls:
        READS[read](store)
    # Each miss adds looks.
    for first in range(calls.count):
        for last in range(first + 1, calls.count + 6):
            with away_between(root, first, last), suppress(StoreUnavailableError):
                assert READS[read](store) == right
    assert READS[read](store) == right


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("then", ["nothing", "folder"])
def test_a_table_that_is_gone_is_not_empty(root: Path, read: str, then: str) -> None:
    store = LocalStore(root)
    root.rename(root.with_name("away"))
    if then == "folder":
        # As a write of Lance makes it.
        (root / "data").mkdir(parents=True)

    with pytest.raises(StoreUnavailableError):
        READS[read](store)


@pytest.mark.parametrize("read", READS)
def test_a_backup_answers_for_itself(root: Path, read: str) -> None:
    store = LocalStore(root)
    root.rename(root.with_name("away"))
    (root / VERSIONS_DIR).mkdir(parents=True)

    assert absent(store, read)


@pytest.mark.parametrize("read", READS)
def test_what_was_no_table_may_be_absent(root: Path, read: str) -> None:
    (root / VERSIONS_DIR).rmdir()
    store = LocalStore(root)
    shutil.rmtree(root)
    assert absent(store, read)
    assert absent(LocalStore(root), read)


@pytest.mark.parametrize("read", READS)
def test_a_table_that_was_made_since_is_known(root: Path, read: str) -> None:
    aside = root.rename(root.with_name("aside"))
    store = LocalStore(root)
    assert absent(store, read)
    aside.rename(root)
    assert not store.exists("absent")
    root.rename(aside)

    with pytest.raises(StoreUnavailableError):
        READS[read](store)


@pytest.mark.parametrize("read", READS)
def test_a_new_table_in_the_place_of_another_one(root: Path, read: str) -> None:
    store = LocalStore(root)
    root.rename(root.with_name("away"))
    store.expect_new_table()
    assert absent(store, read)
    store.create("b/1", b"first")
    assert absent(store, read)
    assert store.get("b/1") == b"first"


def test_what_appears_between_two_looks_is_found(root: Path) -> None:
    looks: list[str] = []

    def look() -> str | None:
        looks.append("")
        (root / "new").write_bytes(b"")
        return "found" if len(looks) > 1 else None

    assert TablePresence(str(root)).find(look, str(root / "new")) == "found"


@pytest.mark.parametrize("read", ["get", "head", "exists"])
def test_a_folder_is_no_object(root: Path, read: str) -> None:
    (root / "a/b/1").unlink()
    (root / "a/b/1").mkdir()
    store = LocalStore(root)
    assert absent(store, read)
    assert not store.exists_within("a/b/1", within="a", proof="b/*")


class TestAFolderThatHasAProof:
    @pytest.mark.parametrize("instead", [None, [], ["c/1"]])
    def test_moves(self, root: Path, instead: list[str] | None) -> None:
        store = LocalStore(root)
        assert not store.exists_within("a/b/2", within="a", proof="b/*")
        assert store.exists_within("a/b/1", within="a", proof="b/*")
        with away_between(root / "a", -1, -1) as calls:
            store.exists_within("a/b/1", within="a", proof="b/*")
        for first in range(calls.count):
            for last in range(first + 1, calls.count + 3):
                with (
                    away_between(root / "a", first, last, instead=instead),
                    suppress(ObjectNotFoundError, StoreUnavailableError),
                ):
                    assert store.exists_within("a/b/1", within="a", proof="b/*")

    @pytest.mark.parametrize("place", ["missing", "empty", "another"])
    def test_that_is_away(self, root: Path, place: str) -> None:
        store = LocalStore(root)
        (root / "a").rename(root / "away")
        if place != "missing":
            (root / "a").mkdir()
        if place == "another":
            store.put("a/c/1", b"")
        with pytest.raises(ObjectNotFoundError):
            store.exists_within("a/b/2", within="a", proof="b/*")

    def test_of_a_table_that_is_away(self, root: Path) -> None:
        store = LocalStore(root)
        root.rename(root.with_name("away"))
        with pytest.raises(StoreUnavailableError):
            store.exists_within("a/b/2", within="a", proof="b/*")
