"""The power goes while a table is made, written, read, merged, collected: nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from power_cuts import consumer_scenes, job_scenes, table_scenes, writer_scenes
from power_cuts.scenes import DONE, WRITTEN, Known, Scene, Stage
from support.data.sampled import drawn
from support.data.tables import rows, state
from support.faults.power_loss import BEGINNING, END, Crash, survive, survive_not
from support.oracles import native
from support.systems import BARE, TAKEN, take_away

import memwal
from memwal.errors import CorruptDataError

JOBS = job_scenes.SCENES
SCENES = {**table_scenes.SCENES, **writer_scenes.SCENES, **consumer_scenes.SCENES, **JOBS}
QUICK = {
    *("create", "tags", "steps", "merge", "writes", "flushes", "takeovers", "new table"),
    *("new column", "merged upserts", "collections", "consumer"),
}
"""What the default tests try; the others are slow."""

SOME = {scene: 2 if scene in JOBS else 3 for scene in SCENES}
"""Of how many disks, of all that a power cut may leave, a test looks at."""

CASES = [
    *(
        pytest.param(
            scene, SOME[scene], id=f"{scene}-some", marks=() if scene in QUICK else pytest.mark.slow
        )
        for scene in SCENES
    ),
    *(
        pytest.param(scene, 6, id=f"{scene}-many", marks=pytest.mark.slow)
        for scene in SCENES.keys() - JOBS.keys()
    ),
    *(pytest.param(scene, None, id=f"{scene}-every", marks=pytest.mark.soak) for scene in SCENES),
]
LESS = [
    *((scene, BARE) for scene in SCENES.keys() - JOBS.keys()),
    *(("tags", lacks) for lacks in TAKEN),
]


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("scene", "most"), CASES)
def test_nothing_is_lost(tmp_path: Path, scene: str, most: int | None) -> None:
    check_scene(tmp_path, scene, most)


@pytest.mark.parametrize(
    ("scene", "lacks"),
    [
        *(
            pytest.param(*case, marks=() if case == ("tags", BARE) else pytest.mark.slow)
            for case in sorted(LESS)
        ),
        *drawn(4, [(job, BARE) for job in JOBS], seed="where the system has less"),
    ],
)
def test_nothing_is_lost_where_the_system_has_less(
    tmp_path: Path, scene: str, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch, lacks)
    check_scene(tmp_path, scene, SOME[scene])


def check_scene(tmp_path: Path, scene: str, most: int | None) -> None:
    recorder = SCENES[scene].record(tmp_path)
    found = SCENES[scene].promised(recorder.crashes())
    survive(found, tmp_path, SCENES[scene].check, most=most)


@pytest.mark.parametrize(
    ("scene", "missing", "after"),
    drawn(
        22,
        [
            ("create", "^syncfs", BEGINNING),
            ("create", "_versions/", BEGINNING),
            ("create", "_versions$", END),
            ("create", "table$", END),
            ("enable", "_versions/", BEGINNING),
            ("new rows", "^syncfs", DONE),
            ("direct commit", "^syncfs", BEGINNING),
            ("tags", "^syncfs", BEGINNING),
            ("copy", "copy/_mem_wal/.*(data|wal)/", BEGINNING),
            ("copy", "copy/_versions", BEGINNING),
            ("quarantine", "^syncfs", BEGINNING),
            ("steps", "/applied/", BEGINNING),
            ("steps", "/applied$", BEGINNING),
            ("hint", "^syncfs", DONE),
            ("IVF_PQ", "_gen_2/_indices/", BEGINNING),
            ("INVERTED", "_gen_2/_indices/", BEGINNING),
            ("writes", r"/wal/[.#]", WRITTEN),
            ("writes", r"/wal$", WRITTEN),
            ("writes", r"_mem_wal$", WRITTEN),
            ("writes", r"table$", WRITTEN),
            ("flushes", r"/manifest/[.#]", WRITTEN),
            ("flushes", r"/manifest$", WRITTEN),
            ("flushes", r"_gen_1/data/.*lance$", WRITTEN),
            ("flushes", r"_gen_1/data$", WRITTEN),
            ("flushes", r"_gen_1/_versions/", WRITTEN),
            ("flushes", r"_gen_1/_versions$", WRITTEN),
            ("flushes", r"_gen_1/_pk_index/", WRITTEN),
            ("flushes", r"_gen_1/_pk_index$", WRITTEN),
            ("flushes", r"_gen_1/(bloom|\.[0-9a-f]+\.tmp)", WRITTEN),
            ("flushes", r"_gen_1$", WRITTEN),
            ("takeover from Lance", r"^syncfs", WRITTEN),
            ("collections", "^syncfs", writer_scenes.COLLECTED),
            ("merge", "^syncfs", BEGINNING),
            ("merge", "_versions/", BEGINNING),
            ("index build", "^syncfs", BEGINNING),
            ("index build", "_versions/", BEGINNING),
            ("compaction", "^syncfs", BEGINNING),
            ("new region spec", "^syncfs", BEGINNING),
            ("consumer", "^syncfs", BEGINNING),
            ("consumer", "/consumers/", BEGINNING),
        ],
        seed="a sync",
    ),
)
def test_a_missing_sync_is_noticed(tmp_path: Path, scene: str, missing: str, after: str) -> None:
    recorder = SCENES[scene].record(tmp_path)
    survive_not(recorder, missing, tmp_path, SCENES[scene].check, after=after)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scene", "missing", "after"),
    [
        ("new rows", "/data/", DONE),
        ("new rows", "/data$", DONE),
        ("direct commit", "table/data/", BEGINNING),
        ("direct commit", "table/_versions/", BEGINNING),
        ("tags", "table/data/", BEGINNING),
        ("quarantine", "/data/", BEGINNING),
        ("hint", "/wal/", DONE),
        ("hint", "/wal$", DONE),
        ("writes", r"/wal/[.#]", WRITTEN),
        ("writes", r"/wal$", WRITTEN),
        ("flushes", r"_gen_1/data/.*lance$", WRITTEN),
        ("takeover from Lance", r"/wal/[01]+\.arrow$", WRITTEN),
        ("takeover from Lance", r"/wal$", WRITTEN),
        ("generation of Lance", r"_gen_1/data/", WRITTEN),
        ("generation of Lance", r"_gen_1$", WRITTEN),
    ],
)
def test_a_missing_sync_is_noticed_where_the_system_has_less(
    tmp_path: Path, scene: str, missing: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch, BARE)
    test_a_missing_sync_is_noticed(tmp_path, scene, missing, after)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["merge", "compaction"])
def test_a_missing_sync_of_each_file_is_noticed(
    tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only then is a file of Lance's synced by itself.
    take_away(monkeypatch, "syncfs")
    test_a_missing_sync_is_noticed(tmp_path, job, f"^fsync {job_scenes.TABLE}/data/", BEGINNING)


@pytest.mark.few(1)
@pytest.mark.parametrize("durable", [True, False], ids=["one-by-one", "buffered"])
@pytest.mark.parametrize("most", [3, pytest.param(None, marks=pytest.mark.soak)])
def test_without_fsync(tmp_path: Path, durable: bool, most: int | None) -> None:
    """What was acknowledged may be lost, but is never mixed up: else there is an error."""
    options = memwal.WriterOptions(fsync=False, durable=durable)

    def live(stage: Stage) -> None:
        with memwal.open(str(stage.path)).writer(options=options) as writer:
            for n in range(3):
                stage.write(writer, {1: n, 2 + n: n})
            writer.flush()
            for n in range(10, 14):
                stage.write(writer, {1: n, 2: n})

    lost = damaged = 0

    def check(path: Path, crash: Crash[Known]) -> None:
        nonlocal lost, damaged
        table = memwal.open(str(path / "table"))
        try:
            with table.writer() as writer:
                writer.claim()
        except CorruptDataError:
            damaged += 1
            return
        recovered = state(table)
        lost += recovered not in crash.known.truth.possible()
        check_plausible(recovered)
        with table.writer() as writer:
            writer.upsert(rows({99: 99}))
        writer_scenes.write_on(table, recovered)
        native.everything(table)

    found = Scene(live, check, writer_scenes.create).record(tmp_path).crashes()
    survive(found, tmp_path, check, most=most)
    # Which disks have less than was acknowledged depends on threads: look on until one has.
    for crash in reversed(found):
        if lost:
            break
        survive([crash], tmp_path, check)
    assert lost, "no acknowledged write was ever lost: then why fsync?"
    assert damaged < len(found)


def check_plausible(found: dict[int, int | None]) -> None:
    """Whether rows are those of the life above, and the two of one write are together."""
    assert set(found.values()) <= {None, 0, 1, 2, *range(10, 14)}
    newest = found.get(1)
    if newest is not None and newest >= 10:
        assert found[2] == newest
    for n in range(3):
        assert found.get(2 + n) in (None, n) or n == 0
