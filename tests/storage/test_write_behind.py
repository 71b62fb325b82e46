import threading
from pathlib import Path
from typing import Any

import pytest

import memwal.util.system as module
from memwal.storage.local_files import write_behind


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], threading.Event]:
    """Sizes of the files that were begun with, by the real call; and an event for the first."""
    real = module.sync_file_range()
    assert real is not None
    sizes: list[int] = []
    first = threading.Event()

    def recording(descriptor: int, *rest: Any) -> int:
        sizes.append(Path(f"/proc/self/fd/{descriptor}").stat().st_size)
        assert real is not None
        assert real(descriptor, *rest) == 0
        first.set()
        return 0

    monkeypatch.setattr(module, "sync_file_range", lambda: recording)
    return sizes, first


def test_new_files_are_begun_with_and_old_ones_are_not(
    tmp_path: Path, begun: tuple[list[int], threading.Event]
) -> None:
    sizes, first = begun
    (tmp_path / "old").write_bytes(bytes(10))
    with write_behind(tmp_path):
        (tmp_path / "new").write_bytes(bytes(5_000))
        assert first.wait(240)
    assert set(sizes) <= {0, 5_000}
    assert not [t for t in threading.enumerate() if t.name == "memwal-write-behind"]


def test_a_failure_of_the_block_ends_the_watch(tmp_path: Path) -> None:
    with pytest.raises(KeyError), write_behind(tmp_path):
        raise KeyError("stop")
    assert not [t for t in threading.enumerate() if t.name == "memwal-write-behind"]


@pytest.mark.parametrize("folder", [None, Path("/nowhere/at/all")])
def test_nowhere_nothing_is_watched(folder: Path | None) -> None:
    with write_behind(folder):
        assert not [t for t in threading.enumerate() if t.name == "memwal-write-behind"]


def test_where_the_system_cannot_nothing_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "sync_file_range", lambda: None)
    with write_behind(tmp_path):
        assert not [t for t in threading.enumerate() if t.name == "memwal-write-behind"]


def test_a_file_that_is_gone_again_is_left_out(
    tmp_path: Path, begun: tuple[list[int], threading.Event]
) -> None:
    _, begun_with_one = begun
    with write_behind(tmp_path):
        # Listed, and gone when it is opened.
        (tmp_path / "gone").symlink_to("nowhere")
        (tmp_path / "first").write_bytes(bytes(5_000))
        assert begun_with_one.wait(240)
        # A watch that ended with the link would not begin with this one, in a later round.
        begun_with_one.clear()
        (tmp_path / "second").write_bytes(bytes(5_000))
        assert begun_with_one.wait(240)


def test_a_folder_that_goes_away_is_left_alone(
    tmp_path: Path, begun: tuple[list[int], threading.Event]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with write_behind(folder):
        folder.rmdir()
        (watcher,) = [t for t in threading.enumerate() if t.name == "memwal-write-behind"]
        watcher.join(240)
        assert not watcher.is_alive()
