"""Deletions stay in the table, also if a folder becomes a link between look and deletion."""

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.data.tables import listing
from support.faults.between_calls import before_call
from support.systems import systems, take_away

from memwal.errors import LinkRefusedError, MemWalError
from memwal.storage.local import LocalStore

DELETIONS: dict[str, Callable[[LocalStore], Any]] = {
    "a file": lambda store: store.delete("region/wal/1"),
    "files": lambda store: store.delete_many(["region/wal/1", "region/wal/2"]),
    "a folder": lambda store: store.delete_folder("region/wal"),
    "temporaries": lambda store: store.delete_stale_temporaries(
        "region/wal", older_than=timedelta(0)
    ),
}
# What each deletion leaves in a folder that is no link.
LEFT = {
    "a file": {".1.tmp", "2"},
    "files": {".1.tmp"},
    "a folder": set(),
    "temporaries": {"1", "2"},
}


@pytest.fixture(autouse=True, params=systems("O_PATH", "EISDIR"))
def _system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, request.param)


def fill(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("1", "2", ".1.tmp"):
        (folder / name).write_text(name)
        os.utime(folder / name, (0, 0))
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Another table."""
    fill(tmp_path / "victim" / "region" / "wal")
    return tmp_path / "victim"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.mark.parametrize("name", DELETIONS)
@pytest.mark.parametrize("link", ["region", "region/wal"])
def test_nothing_is_deleted_behind_a_link(root: Path, victim: Path, name: str, link: str) -> None:
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(victim / link)
    before = listing(victim)
    store = LocalStore(root)

    with pytest.raises(LinkRefusedError) as refused:
        DELETIONS[name](store)

    assert str(root / link) in str(refused.value)
    assert listing(victim) == before
    assert (root / link).is_symlink()
    with pytest.raises(LinkRefusedError):
        store.check_no_link("region/wal")


@pytest.mark.parametrize("name", DELETIONS)
@pytest.mark.parametrize("place", ["itself", "above"])
def test_the_table_itself_may_be_behind_a_link(
    root: Path, victim: Path, name: str, place: str
) -> None:
    if place == "itself":
        root.symlink_to(victim)
        store = LocalStore(root)
    else:
        root.symlink_to(victim.parent)
        store = LocalStore(root / victim.name)

    DELETIONS[name](store)

    store.check_no_link("region/wal")
    remaining = victim / "region" / "wal"
    assert {path.name for path in remaining.glob("*")} == LEFT[name]


@pytest.mark.parametrize("name", DELETIONS)
@pytest.mark.parametrize("call", ["open", "scandir", "unlink"])
@pytest.mark.parametrize("link", ["region", "region/wal"])
def test_a_folder_that_becomes_a_link_on_the_way_stays(
    root: Path, victim: Path, name: str, call: str, link: str
) -> None:
    """Before each call of the system, another process may put a link there."""
    before = listing(victim)

    def replaced_before(number: int) -> int:
        mine = root / str(number)
        fill(mine / "region" / "wal")

        def replace() -> None:
            (mine / link).rename(mine / "aside")
            (mine / link).symlink_to(victim / link)

        # It is refused, or deletes what was there before.
        with before_call(call, number, replace) as calls, suppress(MemWalError):
            DELETIONS[name](LocalStore(mine))
        return calls.count

    number = 0
    while replaced_before(number) > number:
        assert listing(victim) == before
        number += 1
    assert number or call == "scandir"


def test_of_a_link_in_a_folder_the_name_is_deleted(root: Path, victim: Path) -> None:
    fill(root / "gen")
    (root / "gen" / "file").symlink_to(victim / "region" / "wal" / "1")
    (root / "gen" / "folder").symlink_to(victim / "region")
    before = listing(victim)
    store = LocalStore(root)

    store.delete("gen/file")
    assert not (root / "gen" / "file").is_symlink()
    store.delete_folder("gen")

    assert not (root / "gen").exists()
    assert listing(victim) == before


def test_temporaries_behind_a_link_are_listed_and_stay(root: Path, victim: Path) -> None:
    fill(root / "gen")
    (root / "away").symlink_to(victim / "region")
    before = listing(victim)
    store = LocalStore(root)

    assert {info.key for info in store.list_temporaries("")} == {"gen/.1.tmp", "away/wal/.1.tmp"}
    assert store.delete_stale_temporaries("", older_than=timedelta(0)) == 1
    assert listing(victim) == before


def test_what_is_absent_or_another_kind_is_no_error(root: Path) -> None:
    fill(root / "gen")
    store = LocalStore(root)

    for key in ("none", "none/below", "gen", "gen/1/below"):
        store.delete(key)
    for prefix in ("none", "none/below", "gen/1", "gen/1/below"):
        store.delete_folder(prefix)
        store.check_no_link(prefix)

    assert {path.name for path in (root / "gen").iterdir()} == {"1", "2", ".1.tmp"}
