"""Lance's mergers and our jobs commit to one table at once, and no progress and no row is lost."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest
from support.data.tables import MakeTable, base_state, keys, rows, state
from support.oracles import native
from support.oracles.native import everything
from support.processes import running_python

import memwal
from memwal.base_table.snapshot import open_base
from memwal.format.region_manifest import RegionManifest
from memwal.region.manifest_store import RegionManifestStore, read_manifests
from memwal.region.router import UNSHARDED_ID

MARKER = """
import sys, threading
from uuid import UUID
from support.oracles import native
from support.data.tables import rows
import memwal
table, region_id, start = memwal.open(sys.argv[1]), UUID(sys.argv[2]), int(sys.argv[3])
stopped = threading.Event()
print("ready", flush=True)
sys.stdin.readline()
threading.Thread(target=lambda: (sys.stdin.read(), stopped.set())).start()
done = 0
while not stopped.is_set():
    native.mark(table, region_id, done + 1, rows({start + done: done}))
    done += 1
print(done)
"""

MERGER = """
import sys
from support.oracles import native
import memwal
table = memwal.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "native":
    print(native.merge(table))
else:
    # Every generation in a commit of its own.
    result = table.merge(commit_bytes=1)
    assert not result.warnings
    print(result.metrics["generations"])
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a process which waits until it is told to go."""
    with ExitStack() as stack:
        yield lambda code, *arguments: stack.enter_context(running_python(code, *arguments))


def go(children: list[subprocess.Popen[str]]) -> None:
    """Let all start at once, when each is ready."""
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()


def answer(child: subprocess.Popen[str]) -> int:
    """What a process says at its end, which its closed input brings about."""
    output, _ = child.communicate()
    assert child.returncode == 0
    return int(output)


def progress(table: memwal.Table) -> list[dict[UUID, int]]:
    """Merge progress at every version, after checking that no region ever falls back."""
    found: list[dict[UUID, int]] = []
    before: dict[UUID, int] = {}
    for version in range(table.base().version + 1):
        if version and (base := open_base(table.location, version=version)).index is not None:
            for region_id, generation in before.items():
                assert base.details.merged.get(region_id, 0) >= generation, f"version {version}"
            before = dict(base.details.merged)
            found.append(before)
    return found


@pytest.mark.slow
def test_native_mergers_and_our_snapshot_builder(table: memwal.Table, start: Start) -> None:
    regions = [UUID(int=1), UUID(int=2)]
    for region_id in regions:
        first = RegionManifest(
            region_id=region_id, version=1, writer_epoch=1, current_generation=1_000_000
        )
        RegionManifestStore(table.location.store, region_id).commit(first)
    children = [
        start(MARKER, table.uri, str(region_id), str(number * 10_000))
        for number, region_id in enumerate(regions)
    ]
    go(children)
    versions: list[int] = []
    # Between two snapshots that came one right after the other nobody else committed.
    while len(versions) < 8 or versions[-1] - versions[0] < 2 * len(versions):
        result = table.build_snapshot()
        assert result.commits == 1
        versions.append(result.version)
    done = [answer(child) for child in children]
    assert progress(table)[-1] == dict(zip(regions, done, strict=True))
    assert state(native.dataset(table).to_table()) == {
        number * 10_000 + n: n for number, count in enumerate(done) for n in range(count)
    }


@pytest.mark.slow
def test_our_mergers_and_a_native_one(make_table: MakeTable, start: Start) -> None:
    table = make_table(buckets=3)
    wanted: dict[int, int | None] = {}
    for turn in range(6):
        with table.writer() as writer:
            update = dict.fromkeys(range(turn, 60, 1 + turn % 3), turn)
            writer.upsert(rows(update))
            gone = range(turn, 60, 7)
            writer.delete(keys(*gone))
            wanted = {key: n for key, n in (wanted | update).items() if key not in gone}
    manifests = read_manifests(table.location.store)
    assert len(manifests) == 3
    before = everything(table)
    assert state(table) == wanted
    children = [start(MERGER, table.uri, who) for who in ("ours", "native", "ours")]
    go(children)
    merged = [answer(child) for child in children]
    assert sum(merged) == sum(len(manifest.flushed) for manifest in manifests.values()) == 18
    assert progress(table)[-1] == dict.fromkeys(manifests, 6)
    assert state(native.dataset(table).to_table()) == wanted
    assert everything(table) == before
    for version in range(1, table.base().version + 1):
        ids = open_base(table.location, version=version).dataset.to_table()["id"].to_pylist()
        assert len(set(ids)) == len(ids), f"version {version}"


def merge_meanwhile(
    table: memwal.Table, happens: Callable[[], object], *, before_commit: int, **options: Any
) -> Any:
    """Merge, and have something happen once, just before one of the commits, counted from 1.

    A merge with deletes has a commit for them, and then the one that marks what is merged.
    """
    commits = 0

    def guard() -> None:
        nonlocal commits
        commits += 1
        if commits == before_commit:
            happens()

    result = table.merge(guard=guard, **options)
    assert commits >= before_commit
    return result


@pytest.mark.few(2)
@pytest.mark.parametrize("base", [{9: 0}, {1: 0}], ids=["a-new-key", "an-old-key"])
@pytest.mark.parametrize("upserted", [{}, {2: 2}], ids=["nothing", "another-key"])
def test_a_merger_gets_half_way_before_another(
    table: memwal.Table,
    base: dict[int, int | None],
    upserted: dict[int, int | None],
) -> None:
    """A key that one generation brings and the next deletes must not come back."""
    table.upsert(rows(base))
    table.merge()
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        writer.flush()
        writer.delete(keys(1))
        writer.upsert(rows(upserted))
    wanted = state(table)
    result = merge_meanwhile(table, lambda: native.merge(table, generations=1), before_commit=2)
    assert result.warnings == ()
    assert base_state(table) == state(table) == wanted


def test_a_merger_comes_second(table: memwal.Table) -> None:
    """Whatever Lance calls the refusal, it is no failure: somebody else did the work."""
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        writer.flush()
        writer.delete(keys(1))
        writer.upsert(rows({2: 2}))
    # Both generations at once, before the first commit, which deletes nothing.
    result = merge_meanwhile(
        table,
        lambda: native.mark(table, UNSHARDED_ID, 2, rows({2: 2})),
        before_commit=1,
        commit_bytes=1,
    )
    assert (result.metrics["generations"], result.warnings) == (0, ())
    assert base_state(table) == {2: 2}
