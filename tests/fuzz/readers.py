"""Everything of memwal that reads bytes of a store: what it is given, and what it must make of it.

A reader raises nothing but a ``MemWalError``, or makes something of the bytes. What it makes is
used here as the library would, so that what only comes out later comes out here.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

import pyarrow as pa
from fuzz import samples
from fuzz.arrow_changes import signed, stream
from fuzz.byte_changes import ANY, ODD_TEXTS, Change, double
from fuzz.json_changes import document, raw
from fuzz.manifest_changes import inside_manifest
from fuzz.protobuf_changes import message
from support.data.postings import posting_list

from memwal.base_table.region_snapshot import read_snapshot
from memwal.catalog.records import read_snapshot as read_catalog
from memwal.errors import CorruptDataError, InvalidInputError, MemWalError
from memwal.format import paths
from memwal.format.bloom import BloomFilter
from memwal.format.lance_files import read_centroids, read_codebook
from memwal.format.lance_manifest import find_mem_wal_index, read_index_section, read_traits
from memwal.format.memwal_index import IndexDetails
from memwal.format.region_manifest import RegionManifest
from memwal.format.values import to_python_rows
from memwal.format.wal_entry import WalEntry, decode_entry, decode_head
from memwal.format.wal_layout import CHECKSUM, WRITER_ID, decode_applied, encode_applied
from memwal.lsm.row_schema import RowSchema
from memwal.lsm.wal.abandon import AbandonedRows
from memwal.quality.quarantine import RowOrigin
from memwal.quality.rules import read_rules
from memwal.region.manifest_store import RegionManifestStore
from memwal.region.router import UNSHARDED_ID
from memwal.region.spec import RegionSpec
from memwal.region.values import decode_values, parse_type
from memwal.search.text.fst import TokenMap
from memwal.search.text.postings import decode_postings
from memwal.storage.credentials import read_options_file
from memwal.storage.open import open_store


def _never(_: bytes) -> bool:
    return False


def _has_checksum(entry: bytes) -> bool:
    """Whether an entry of the log is one of this package; others have no checksum."""
    return CHECKSUM in entry or WRITER_ID in entry


@dataclass(frozen=True)
class Reader:
    """One that reads bytes of a store.

    Attributes
    ----------
    name : str
    samples : callable
        Makes valid bytes.
    read : callable
        Reads some, and uses what it got.
    changes : tuple of callable
        What is done to them, beside what is done to any bytes.
    vouched : callable
        Whether bytes say that they have a checksum of them all: every change must be noticed.
    finish : callable
        What is done to them last.
    alone : bool
        Whether foreign code reads them that may end the process: for a process of its own.
    """

    name: str
    samples: samples.Samples
    read: Callable[[bytes], object]
    changes: tuple[Change, ...] = ANY
    vouched: Callable[[bytes], bool] = _never
    finish: Callable[[bytes], bytes] = bytes
    alone: bool = False


def _region_manifest(data: bytes) -> None:
    manifest = RegionManifest.decode(data, name="here")
    assert RegionManifest.decode(manifest.encode()) == manifest
    for flushed in manifest.flushed:
        with suppress(CorruptDataError):
            _check_inside(paths.generation_dir(manifest.region_id, flushed.path))
    for _, value in manifest.region_fields:
        for kind in ("int32", "boolean", "utf8", "date32", "timestamp(us, UTC)", "binary"):
            with suppress(CorruptDataError):
                decode_values([value, None], parse_type(kind))


_HINTED: Final = RegionManifest(region_id=UNSHARDED_ID, version=3, writer_epoch=1)


def _hint(data: bytes) -> None:
    """A hint is not needed: the newest manifest is found, unless the hint names a later one."""
    store = open_store("memory://fuzz")
    manifests = RegionManifestStore(store, UNSHARDED_ID)
    store.put(paths.manifest_key(UNSHARDED_ID, 3), _HINTED.encode())
    store.put(paths.version_hint_key(UNSHARDED_ID), data)
    try:
        assert manifests.read_latest() == _HINTED
    except MemWalError as error:
        hint = manifests.read_hint()
        if isinstance(error, CorruptDataError) and hint is not None and hint > _HINTED.version:
            return
        raise AssertionError("a hint kept the manifest from being read") from error


@cache
def _row_schema() -> RowSchema:
    return RowSchema(samples.ROWS.schema.remove(len(samples.ROWS.schema) - 1), ["id"])


def _entry(data: bytes) -> WalEntry:
    entry = decode_entry(data, name="here")
    for batch in entry.batches:
        batch.validate(full=True)
        assert batch.num_rows <= 8 * len(data) or batch.nbytes < 1 << 30
        if batch.num_rows < 10_000:
            to_python_rows(pa.Table.from_batches([batch]))
        with suppress(InvalidInputError):
            _row_schema().convert_logged(batch)
    return entry


def _head(data: bytes) -> None:
    found = decode_head(data, name="here")
    assert isinstance(found, int) or found.writer_epoch >= 0


def _table_manifest(data: bytes) -> None:
    read_index_section(data, name="here")
    read_traits(data)
    entry = find_mem_wal_index(data, name="here")
    if entry is not None:
        _details(entry.details)


def _details(data: bytes) -> None:
    details = IndexDetails.decode(data, name="here")
    assert IndexDetails.decode(details.encode()) == details
    for stored in details.region_specs:
        with suppress(InvalidInputError, CorruptDataError):
            RegionSpec.from_stored(stored, {0: "id", 1: "n", 2: "text"})


def _snapshot(data: bytes) -> None:
    details = IndexDetails.decode(data, name="here")
    for region_id, manifest in (read_snapshot(open_store("memory://fuzz"), details) or {}).items():
        assert manifest.region_id == region_id


def _book(data: bytes) -> None:
    assert (
        decode_applied(encode_applied(decode_applied(data, name="here")), name="again") is not None
    )


def _abandoned(data: bytes) -> None:
    record = AbandonedRows.decode(data, name="here")
    _check_inside(record.key)
    assert AbandonedRows.decode(record.encode(), name="again") == record


def _bloom(data: bytes) -> None:
    found = BloomFilter.from_bytes(data).might_contain([pa.array(range(100))])
    assert len(found) == 100


def _tokens(data: bytes) -> None:
    tokens = TokenMap(data, lists=100, name="here")
    for term in ("word17", "more3", "", "ä", "x" * 50):
        tokens.get(term)
    for distance in (-1, 1, 2):
        list(islice(tokens.fuzzy_terms("word1", distance=distance, prefix=1), 1_000))


def _postings(data: bytes) -> None:
    varint, length, blocks = samples.unpack_postings(data)
    one = posting_list(blocks, length, documents=300, varint_tail=varint)
    documents, counts = decode_postings([one], name="here")
    assert len(documents) == len(counts) == length


def _origin(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    origin = RowOrigin.parse(text)
    _check_inside(paths.generation_dir(origin.region_id, origin.folder))
    assert RowOrigin.parse(str(origin)) == origin


def _names(data: bytes) -> None:
    """Names as a listing shows them."""
    name = data.decode(errors="surrogateescape")
    region = paths.parse_region_name(name)
    assert region is None or str(region) == name
    for parse in (paths.parse_manifest_name, paths.parse_wal_name, paths.parse_applied_name):
        number = parse(name)
        assert number is None or paths.bit_reversed(number + 1)
    with suppress(CorruptDataError):
        _check_inside(paths.generation_dir(UNSHARDED_ID, name))


def _check_inside(key: str) -> None:
    path = PurePosixPath(key)
    assert not path.is_absolute()
    assert ".." not in path.parts
    assert "\0" not in key


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuzz-")


def _as_file(data: bytes) -> Path:
    path = Path(_scratch().name, "document.json")
    path.write_bytes(data)
    return path


def odd_text(dice: object, data: bytes, others: Sequence[bytes]) -> bytes:
    """A text of its own."""
    return dice.choice(ODD_TEXTS).encode()  # type: ignore[attr-defined, no-any-return]


_PROTOBUF: Final = (*ANY, *(message,) * 9)
_ARROW: Final = (*ANY, *(stream,) * 9)
_JSON: Final = (*ANY, *(document,) * 8, raw)
_NAMES: Final = (*ANY, odd_text, odd_text, double)

READERS: Final = {
    reader.name: reader
    for reader in (
        Reader("region-manifest", samples.region_manifests, _region_manifest, _PROTOBUF),
        Reader("version-hint", samples.hints, _hint, _JSON),
        Reader("log-entry", samples.our_entries, _entry, _ARROW, vouched=_has_checksum),
        Reader("signed-log-entry", samples.our_entries, _entry, _ARROW, finish=signed),
        Reader("foreign-log-entry", samples.foreign_entries, _entry, _ARROW),
        Reader("head-of-log-entry", samples.our_entries, _head, _ARROW),
        Reader(
            "table-manifest",
            samples.table_manifests,
            _table_manifest,
            (*_PROTOBUF, *(inside_manifest,) * 9),
        ),
        Reader("index-details", samples.details, _details, _PROTOBUF),
        Reader("region-snapshot", samples.snapshots, _snapshot, _PROTOBUF, alone=True),
        Reader("book-of-steps", samples.books, _book, _JSON),
        Reader("abandoned-rows", samples.abandoned, _abandoned, _JSON),
        Reader("bloom-filter", samples.blooms, _bloom),
        Reader("token-map", samples.token_maps, _tokens),
        Reader("posting-list", samples.posting_lists, _postings),
        Reader(
            "centroids",
            lambda: samples.models()[0],
            lambda data: read_centroids(data, name="here"),
            _PROTOBUF,
        ),
        Reader(
            "codebook",
            lambda: samples.models()[1],
            lambda data: read_codebook(data, name="here"),
            _PROTOBUF,
        ),
        Reader("quarantine-origin", samples.origins, _origin, _NAMES),
        Reader("names", samples.names, _names, _NAMES),
        Reader(
            "storage-options",
            lambda: samples.documents()["options"],
            lambda data: read_options_file(_as_file(data)),
            _JSON,
        ),
        Reader(
            "quality-rules",
            lambda: samples.documents()["rules"],
            lambda data: read_rules(f"@{_as_file(data)}"),
            _JSON,
        ),
        Reader(
            "catalog-snapshot",
            lambda: samples.documents()["catalog"],
            lambda data: read_catalog(_as_file(data)),
            _JSON,
        ),
    )
}
