"""The golden files are what the pylance of today writes."""

import gzip
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lance.file import LanceFileReader

from memwal.format.lance_manifest import read_index_section
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import parse_generation_name
from memwal.format.region_manifest import RegionManifest


@pytest.fixture(scope="module")
def fresh(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of golden files written just now."""
    spec = importlib.util.spec_from_file_location("make_golden", golden / "make_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("golden")
    module.make(folder)
    return folder


def names_below(folder: Path) -> set[str]:
    ignored = {".py", ".pyc"}
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in ignored
    }


def test_the_same_files(golden: Path, fresh: Path) -> None:
    assert names_below(fresh) == names_below(golden)


def test_the_same_went_in(fresh: Path, told: dict[str, Any]) -> None:
    now = json.loads((fresh / "golden.json").read_text())
    assert {**now, "pylance": ""} == {**told, "pylance": ""}


@pytest.mark.parametrize("pattern", ["keys/*.bloom.gz", "keys/*/page_data.lance", "region/wal/*"])
def test_the_same_bytes(golden: Path, fresh: Path, pattern: str) -> None:
    paths = sorted(golden.glob(pattern))
    assert paths
    for path in paths:
        assert content(fresh / path.relative_to(golden)) == content(path), path.name


def content(path: Path) -> bytes:
    """Bytes of a file; of one that is packed those inside, since each Python packs differently."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def test_the_same_key_lookups(golden: Path, fresh: Path) -> None:
    # Lance writes the metadata of this file in no certain order.
    paths = sorted(golden.glob("keys/*/page_lookup.lance"))
    assert paths
    for path in paths:
        before, now = (
            LanceFileReader(str(each)) for each in (path, fresh / path.relative_to(golden))
        )
        assert now.read_all().to_table() == before.read_all().to_table()
        assert now.metadata().schema.metadata == before.metadata().schema.metadata
        assert before.metadata().schema.metadata[b"batch_size"] == b"8192"


def test_the_same_manifests_but_for_the_tokens(golden: Path, fresh: Path) -> None:
    def without_tokens(path: Path) -> RegionManifest:
        manifest = RegionManifest.decode(path.read_bytes())
        numbers = [parse_generation_name(flushed.path) for flushed in manifest.flushed]
        assert numbers == [flushed.generation for flushed in manifest.flushed]
        return replace(
            manifest,
            flushed=tuple(replace(flushed, path="") for flushed in manifest.flushed),
        )

    for path in sorted(golden.glob("region/manifest/*")):
        assert without_tokens(fresh / path.relative_to(golden)) == without_tokens(path)


def test_the_same_index_sections_but_for_ids(golden: Path, fresh: Path) -> None:
    def summary(path: Path) -> dict[str, Any]:
        return {
            entry.name: (
                replace(entry, uuid=None, details=b""),
                IndexDetails.decode(entry.details),
            )
            for entry in read_index_section(path.read_bytes())
        }

    for path in sorted(golden.glob("table/*")):
        assert summary(fresh / path.relative_to(golden)) == summary(path)
