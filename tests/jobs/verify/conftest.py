"""A table in every state that a region can have, by us and by Lance, and how to spoil it."""

import shutil
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from support.data.sampled import sampled
from support.data.tables import REGION, SCHEMA, MakeTable, age, folder, keys, manifest, rows
from support.oracles import native
from support.stores.faulty_store import skip_waits

import memwal
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import (
    generation_dir,
    manifest_key,
    table_manifest_keys,
    version_hint_key,
    wal_key,
)
from memwal.format.region_manifest import RegionManifest
from memwal.jobs.options import VerifyOptions
from memwal.jobs.verify import Finding, VerifyReport, verify
from memwal.jobs.verify import job as verify_run


@dataclass(frozen=True)
class Spoiled:
    """A table of three generations, two of them merged, indexed, and with a snapshot."""

    table: memwal.Table

    @property
    def root(self) -> Path:
        """Folder of the table."""
        return folder(self.table)

    def path(self, key: str) -> Path:
        """File of an object."""
        return self.root / key

    def generation(self, number: int) -> Path:
        """Folder of a generation."""
        (flushed,) = [f for f in manifest(self.table).flushed if f.generation == number]
        return self.path(generation_dir(REGION, flushed.path))

    def entry(self, position: int) -> Path:
        """File of a log entry."""
        return self.path(wal_key(REGION, position))

    def manifest_path(self, version: int | None = None) -> Path:
        """File of a version of the region's manifest, by default the newest."""
        return self.path(manifest_key(REGION, version or manifest(self.table).version))

    @property
    def hint(self) -> Path:
        """File of the version hint."""
        return self.path(version_hint_key(REGION))

    def next_manifest(self, **changes: Any) -> RegionManifest:
        """Write the next version of the manifest, with a hint."""
        latest = manifest(self.table)
        changed = replace(latest, version=latest.version + 1, **changes)
        self.manifest_path(changed.version).write_bytes(changed.encode())
        self.hint.write_text(f'{{"version": {changed.version}}}')
        return changed

    def change_details(self, change: Callable[[IndexDetails], IndexDetails]) -> None:
        """Change the details behind Lance's back; they have to keep their length."""
        base = self.table.base()
        assert base.index is not None
        new = change(base.details).encode()
        assert len(new) == len(base.index.details)
        path = self.base_manifest()
        data = path.read_bytes()
        assert data.count(base.index.details) >= 1
        path.write_bytes(data.replace(base.index.details, new))

    def base_manifest(self, version: int | None = None) -> Path:
        """File of a version of the base table, by default the newest."""
        return self.path(table_manifest_keys(version or self.table.base().version)[0])

    def verify(self, *, clock: Callable[[], float] = time.time, **options: Any) -> VerifyReport:
        """Look at it all."""
        return verify(self.table.location, VerifyOptions(**options), clock=clock)

    def codes(self, **options: Any) -> list[str]:
        """Codes of what is found."""
        return [finding.code for finding in self.verify(**options).findings]

    def only(self, code: str, **options: Any) -> Finding:
        """The one finding, which has this code."""
        findings = self.verify(**options).findings
        assert [finding.code for finding in findings] == [code], findings
        return findings[0]


def write_generations(table: memwal.Table, client: str) -> None:
    """Three generations and an entry that is not flushed: keys 0 to 99; 3 is deleted at last."""
    for n in range(3):
        values = rows({key: n for key in range(100) if key != n * 10})
        gone = pa.table({"id": keys(3)})
        if client == "ours":
            with table.writer() as writer:
                writer.upsert(values)
                writer.delete(gone)
                writer.flush()
        else:
            writer = native.writer(table)
            native.put(writer, table, values)
            writer.delete(gone)
            writer.close()


def merge_two(table: memwal.Table, client: str) -> None:
    """Merge the first two generations, with our calls or with Lance's."""
    if client == "native":
        native.merge(table, generations=2)
        return
    waiting = manifest(table).flushed[-1]
    newest = manifest(table)
    path = folder(table) / manifest_key(REGION, newest.version)
    whole = path.read_bytes()
    # For a moment the last one is not there.
    path.write_bytes(replace(newest, flushed=newest.flushed[:-1]).encode())
    table.merge()
    path.write_bytes(whole)
    assert manifest(table).flushed[-1] == waiting


CLIENTS = ("ours", "native")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spoil the table of one client by default, and of the other in the slow tests.

    The checks are the same for both, and both tables are clean before. Which one it is differs from
    test to test. Tests of what the clients do write in ways of their own name both.
    """
    marks = metafunc.definition.iter_markers("parametrize")
    named = any("client" in mark.args[0] for mark in marks)
    if "client" in metafunc.fixturenames and not named:
        default = CLIENTS[zlib.crc32(metafunc.function.__name__.encode()) % 2]
        metafunc.parametrize("client", sampled(CLIENTS, default.__eq__))


@pytest.fixture(scope="module")
def clean_tables(tmp_path_factory: pytest.TempPathFactory, of_few_rows: None) -> dict[str, Path]:
    """Return a clean table of each client, to be copied."""
    made = {}
    for client in ("ours", "native"):
        path = tmp_path_factory.mktemp("clean") / client
        table = memwal.create(path, SCHEMA, primary_key="id", maintained_indexes=["id_idx"])
        write_generations(table, client)
        merge_two(table, client)
        table.build_indexes()
        table.build_snapshot()
        # Rows that nobody flushes: the process died.
        writer = table.writer()
        for key in (200, 201, 202):
            writer.upsert(rows({key: 1}))
        writer.abort()
        assert verify(table.location).findings == ()
        age(table, 60)
        made[client] = path
    return made


@pytest.fixture
def spoiled(clean_tables: dict[str, Path], client: str, tmp_path: Path) -> Spoiled:
    """Return a clean table that is about to be spoiled."""
    shutil.copytree(clean_tables[client], tmp_path / "table")
    return Spoiled(memwal.open(str(tmp_path / "table")))


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look again at once."""
    skip_waits(monkeypatch, verify_run)


@pytest.fixture
def make_divided(make_table: MakeTable) -> tuple[Spoiled, UUID]:
    """Return a table of two regions, and one of them."""
    table = make_table(buckets=2)
    table.upsert(rows(dict.fromkeys(range(100), 0)))
    divided = Spoiled(table)
    assert divided.verify().findings == ()
    return divided, table.region_ids()[0]
