"""Tables with files outside of their folder: refused, or with an allowance used by every job."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data import indexed
from support.data.future import add_version
from support.data.indexed import create_index
from support.data.tables import REGION, collect_now, folder, manifest, rows, state

import memwal
from memwal.base_table.snapshot import open_base
from memwal.errors import CorruptDataError, InvalidInputError, MemWalError, TableSetupError
from memwal.fleet import open_managed
from memwal.format._proto import lance_manifest_pb2
from memwal.format.paths import generation_dir
from memwal.jobs.index.migration import IndexMigration
from memwal.jobs.policy import Policy
from memwal.storage.location import TableLocation, allow_external

CALLS: dict[str, Callable[[memwal.Table, Path], Any]] = {
    "open": lambda table, _: memwal.open(table.uri),
    "scan": lambda table, _: table.scan().to_table(),
    "lookup": lambda table, _: table.lookup([1]).to_table(),
    "status": lambda table, _: table.status(),
    "writer": lambda table, _: table.writer().upsert(rows({5: 5})),
    "merge": lambda table, _: table.merge(),
    "build_indexes": lambda table, _: table.build_indexes(),
    "compact": lambda table, _: table.compact(min_fragments=2),
    "collect": lambda table, _: collect_now(table, version_retention_seconds=0),
    "copy": lambda table, tmp_path: table.copy_to(str(tmp_path / "copy")),
    "verify": lambda table, _: table.verify(),
    "snapshot": lambda table, _: table.build_snapshot(),
}


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def make_source(path: Path, *, stable_row_ids: bool = False) -> lance.LanceDataset:
    """A plain Lance table of three fragments with two indexes and a deleted row."""
    dataset = lance.write_dataset(
        rows({key: key for key in range(90)}),
        str(path),
        max_rows_per_file=30,
        enable_stable_row_ids=stable_row_ids,
    )
    dataset.create_scalar_index("id", "BTREE", name="id_idx")
    dataset.create_scalar_index("text", "INVERTED", name="text_idx")
    dataset.delete("id = 2")
    return dataset


def make_clone(source: lance.LanceDataset, path: Path) -> Path:
    source.tags.create(path.name, source.version)
    source.shallow_clone(str(path), path.name)
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    make_source(tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def clone(source: Path, tmp_path: Path) -> Path:
    return make_clone(lance.dataset(str(source)), tmp_path / "clone")


def enabled(clone: Path, source: Path) -> memwal.Table:
    return memwal.enable(
        clone,
        region_spec="unsharded",
        primary_key=["id"],
        maintained_indexes=["id_idx"],
        allow_external=[str(source)],
    )


def test_no_call_touches_files_that_are_not_allowed(
    clone: Path, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(TableSetupError):
        memwal.enable(clone, region_spec="unsharded", primary_key=["id"])
    enabled(clone, source)
    before = contents(clone)
    for name, call in CALLS.items():
        with pytest.raises(TableSetupError, match=str(source)):
            call(memwal.Table(TableLocation(str(clone))), tmp_path)
            pytest.fail(name)
    assert contents(clone) == before
    assert not (tmp_path / "copy").exists()


def test_the_allowance_is_of_folders(clone: Path, source: Path, tmp_path: Path) -> None:
    enabled(clone, source)
    for allowed in (str(source), f"file://{source}", str(tmp_path), f"{source}/"):
        assert memwal.open(clone, allow_external=["/elsewhere", allowed]).scan().count_rows() == 89
    for other in (
        "/elsewhere",
        f"{source}2",
        str(source)[:-1],
        str(source / "data"),
        "s3://source",
    ):
        with pytest.raises(TableSetupError):
            memwal.open(clone, allow_external=[other])
    for wrong in ("", "/a,b", "ftp://a"):
        with pytest.raises(InvalidInputError):
            memwal.open(clone, allow_external=[wrong] if wrong else [f"{source}/,/x"])


def test_paths_with_parent_folders_are_not_below_a_root() -> None:
    location = TableLocation("s3://lake/t", allow_external(None, ["s3://lake/shared"]))
    assert location.allows("s3://lake/shared/a")
    assert location.allows("s3://lake/t")
    assert not location.allows("s3://lake/shared/../private")
    assert not location.allows("s3://lake/sharedx")
    assert not TableLocation("/a/b", allow_external(None, ["/c"])).allows("/c/../d")


@pytest.mark.few(2)
@pytest.mark.parametrize("stable_row_ids", [False, True])
@pytest.mark.parametrize("divide_bytes", [0, 1 << 30])
def test_an_allowed_clone_works_through_every_job(
    tmp_path: Path, stable_row_ids: bool, divide_bytes: int
) -> None:
    source = tmp_path / "source"
    make_clone(make_source(source, stable_row_ids=stable_row_ids), tmp_path / "clone")
    before = contents(source)
    table = enabled(tmp_path / "clone", source)
    expected = {key: key for key in range(90) if key != 2}
    for number, changed in enumerate(({1: 100, 2: 200}, {31: 300, 95: 400})):
        with table.writer() as writer:
            writer.upsert(rows(changed))
            writer.delete(pa.array([60 + number]))
            writer.flush()
        expected = {**expected, **changed}
        del expected[60 + number]
        assert state(table) == expected
        assert table.merge(divide_bytes=divide_bytes).warnings == ()
        assert table.build_indexes().warnings == ()
        assert state(table) == expected
        assert state(table.lookup([1, 2, 5, 60]).to_table()) == {
            key: expected[key] for key in (1, 2, 5) if key in expected
        }
        assert table.search_text("100", column="text", k=1).to_table()["id"].to_pylist() == [1]
    table.build_snapshot()
    assert table.status().base_rows == len(expected)

    table.copy_to(str(tmp_path / "copy"))
    table.compact(min_fragments=2)
    table.checkpoint()
    for _ in range(2):
        collect_now(table, version_retention_seconds=0)

    assert state(table) == expected
    assert table.verify(deep=True).clean
    assert contents(source) == before
    shutil.rmtree(source)
    copy = memwal.open(tmp_path / "copy")
    assert lance.dataset(copy.uri).base_paths() == {}
    assert state(copy) == expected
    assert copy.verify(deep=True).clean


def test_files_in_a_folder_that_is_no_table_are_copied_too(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    lance.write_dataset(
        rows({1: 1, 2: 2}),
        str(tmp_path / "table"),
        initial_bases=[lance.DatasetBasePath(path=str(tmp_path / "disk"), name="disk")],
        target_bases=["disk"],
    )
    table = enabled_plainly(tmp_path / "table", tmp_path / "disk")
    table.upsert(rows({3: 3}))

    table.copy_to(str(tmp_path / "copy"))
    (lost,) = (tmp_path / "disk").glob("*.lance")
    lost.unlink()

    assert state(memwal.open(tmp_path / "copy")) == {1: 1, 2: 2, 3: 3}
    (finding,) = (f for f in table.verify().findings if f.code == "table-file-missing")
    assert finding.object == str(lost)


def enabled_plainly(path: Path, outside: Path) -> memwal.Table:
    return memwal.enable(
        path, region_spec="unsharded", primary_key=["id"], allow_external=[str(outside)]
    )


def test_a_generation_has_no_files_outside(table: memwal.Table, tmp_path: Path) -> None:
    table.upsert(rows({1: 1}))
    (flushed,) = manifest(table).flushed
    generation = folder(table) / generation_dir(REGION, flushed.path)

    def add(message: lance_manifest_pb2.Manifest) -> None:
        message.base_paths.add(id=1, path=str(tmp_path), is_dataset_root=True)

    add_version(generation, add)

    with pytest.raises(TableSetupError):
        table.scan().to_table()
    assert table.merge().warnings
    assert table.base().details.merged == {}


NAMES: dict[str, Callable[[lance_manifest_pb2.Manifest, str], None]] = {
    "a data file": lambda message, name: setattr(message.fragments[0].files[0], "path", name),
    "an overlay": lambda message, name: setattr(
        message.fragments[0].overlays.add().data_file, "path", name
    ),
    "row ids": lambda message, name: setattr(message.fragments[0].external_row_ids, "path", name),
    "a commit record": lambda message, name: setattr(message, "transaction_file", name),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ["../../other/data/x.lance", "/etc/x.lance", "a/../../x"])
@pytest.mark.parametrize("change", NAMES.values(), ids=NAMES)
def test_names_that_lead_out_of_the_table_are_refused(
    table: memwal.Table, change: Callable[[lance_manifest_pb2.Manifest, str], None], name: str
) -> None:
    table.upsert(rows({1: 1}))
    table.merge()
    add_version(folder(table), lambda message: change(message, name))

    # Lance itself refuses an overlay without a coverage.
    with pytest.raises(MemWalError):
        memwal.open(table.uri)
    if change is not NAMES["an overlay"]:
        with pytest.raises(CorruptDataError):
            open_base(table.location)


def test_the_policy_of_a_managed_table_allows(clone: Path, source: Path, catalog: Any) -> None:
    enabled(clone, source)
    managed = catalog.register("clone", uri=str(clone))
    with pytest.raises(TableSetupError):
        open_managed(managed)
    catalog.update("clone", policy=Policy(allow_external=(str(source),)))

    opened = open_managed(catalog.get("clone"))

    assert opened.scan().count_rows() == 89
    with pytest.raises(InvalidInputError):
        Policy(allow_external=("/a,/b",))


def test_the_model_of_an_index_is_read_from_the_folder_of_its_segment(tmp_path: Path) -> None:
    source = lance.write_dataset(indexed.rows(0, 300), tmp_path / "source", schema=indexed.SCHEMA)
    create_index(source, "IVF_PQ", num_partitions=2)
    make_clone(lance.dataset(tmp_path / "source"), tmp_path / "clone")
    table = memwal.enable(
        tmp_path / "clone",
        region_spec="unsharded",
        primary_key=["id"],
        maintained_indexes=["idx"],
        allow_external=[str(tmp_path / "source")],
    )
    table.upsert(indexed.rows(300, 10))
    table.merge()
    table.build_indexes()
    files = list((tmp_path / "clone" / "_indices").glob("*/auxiliary.idx"))

    assert IndexMigration(table.location, "idx").start(num_partitions=1).step == "started"

    for file in files:
        file.write_bytes(b"")
    assert table.build_indexes().metrics["rebuilt"] == 1
    assert table.verify().clean
