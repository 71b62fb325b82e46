"""Valid bytes of every kind that is read from a store, as memwal and Lance write them.

Most stand in the golden tables (``tests/golden``) and in what pylance's own writer left beside the
format's tests (``tests/format/golden``); what these lack is made here.
"""

import io
import json
import re
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from support.data.entries import encode_entry

from memwal.errors import MemWalError
from memwal.format.lance_manifest import find_mem_wal_index
from memwal.format.memwal_index import IndexDetails
from memwal.format.wal_encoder import EntryEncoder, encode_sentinel
from memwal.format.wal_entry import decode_entry
from memwal.format.wal_layout import NewestStep, encode_applied
from memwal.lsm.wal.abandon import AbandonedRows
from memwal.region.router import UNSHARDED_ID

TESTS: Final = Path(__file__).parents[1]
LANCES: Final = TESTS / "format" / "golden"

Samples = Callable[[], Sequence[bytes]]


@cache
def golden_files() -> dict[str, bytes]:
    """Every file of the golden tables of the newest version that has some, by its path."""
    newest = max(path.parent for path in TESTS.glob("golden/*/tables.tar.xz"))
    with tarfile.open(newest / "tables.tar.xz") as archive:
        return {
            member.name: file.read()
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }


def extract(name: str, folder: Path) -> Path:
    """Put a golden table into a folder, with what belongs to it beside it."""
    for path, data in golden_files().items():
        if path.startswith((f"{name}/", f"{name}__")):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    return folder / name


def matching(pattern: str) -> list[bytes]:
    """Contents of the golden files whose path has this in it, each once, the shortest first."""
    found = {data for path, data in golden_files().items() if re.search(pattern, path)}
    return sorted(found, key=lambda data: (len(data), data))


@cache
def region_manifests() -> list[bytes]:
    """Of ours and of Lance's writer."""
    return matching(r"/manifest/\d+\.binpb") + _files(LANCES / "region" / "manifest")


@cache
def hints() -> list[bytes]:
    """Version hints of regions."""
    return [*matching(r"version_hint\.json$")[:2], b'{"version": 1}', b'{"version": 3}']


@cache
def our_entries() -> list[bytes]:
    """Log entries with a checksum: rows, sentinels, steps, dictionaries, wide and nested values."""
    ours = [data for data in matching(r"/wal/\d+\.arrow") if _has_writer(data)]
    return [*ours, _nested_entry(), _step_entry(), encode_sentinel(writer_epoch=3, writer_id="w")]


@cache
def foreign_entries() -> list[bytes]:
    """Log entries without one: of Lance's writer, and of clients that compress or extend types."""
    lances = _files(LANCES / "region" / "wal")
    return [*lances, encode_sentinel(writer_epoch=2), *_made_streams()]


@cache
def table_manifests() -> list[bytes]:
    """Manifests of base tables and of generations."""
    return matching(r"/_versions/\d+\.manifest")[::3] + _files(LANCES / "table")


@cache
def details() -> list[bytes]:
    """Details of MemWAL indexes."""
    entries = (find_mem_wal_index(manifest) for manifest in table_manifests())
    found = {entry.details for entry in entries if entry is not None}
    return sorted(found, key=lambda data: (len(data), data))


@cache
def snapshots() -> list[bytes]:
    """Details with a snapshot of the regions, or with the way to one."""
    return [data for data in details() if IndexDetails.decode(data).inline_snapshots]


@cache
def books() -> list[bytes]:
    """Books of applied steps."""
    plain = {"a": NewestStep(0), "b/2": NewestStep(2**64 - 1)}
    books = ({}, {"query": NewestStep(3, "first")}, plain)
    return [encode_applied(steps) for steps in books]


@cache
def abandoned() -> list[bytes]:
    """Records of rows that were given up."""
    record = AbandonedRows(
        region_id=UNSHARDED_ID,
        epoch=3,
        writer_id="0" * 32,
        host="host",
        process=1,
        time=datetime(2026, 1, 2, tzinfo=UTC),
        first_position=4,
        last_position=9,
        entries=2,
        rows=20,
        entry_bytes=2_000,
        newest_generation=2,
        missing=((5, 6),),
        damaged=(7,),
        carried_out=True,
    )
    return [record.encode(), replace(record, missing=(), damaged=()).encode()]


@cache
def blooms() -> list[bytes]:
    """Bloom filters of generations."""
    return matching(r"bloom_filter\.bin$")[:3]


@cache
def token_maps() -> list[bytes]:
    """Maps of tokens of text indexes."""
    found = [_lance_rows(data) for data in matching(r"part_0_tokens\.lance$")]
    return [rows.column(0)[0].as_py() for rows in found]


@cache
def posting_lists() -> list[bytes]:
    """Posting lists in a form of the tests: whether the tail is of varints, and the blocks."""
    found = []
    for data in matching(r"part_0_invert\.lance$"):
        rows = _lance_rows(data)
        for number in range(0, rows.num_rows, 7):
            blocks = rows.column("_posting")[number].as_py()
            found.append(pack_postings(blocks, rows.column("_length")[number].as_py()))
    return found


def pack_postings(blocks: Sequence[bytes], length: int) -> bytes:
    """One posting list as bytes."""
    parts = [struct.pack("<I", len(block)) + block for block in blocks]
    return b"\1" + struct.pack("<I", length) + b"".join(parts)


def unpack_postings(data: bytes) -> tuple[bool, int, list[bytes]]:
    """What :func:`pack_postings` made, also of bytes that it did not make."""
    head = data[:5].ljust(5, b"\0")
    blocks = []
    at = 5
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        blocks.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return bool(head[0]), int.from_bytes(head[1:], "little"), blocks


@cache
def models() -> tuple[list[bytes], list[bytes]]:
    """Inverted files and codebooks of vector indexes."""
    from lance.file import LanceFileReader

    inverted, codebooks = [], []
    for folder, index, auxiliary in _vector_indexes():
        for path, data in (("index.idx", index), ("auxiliary.idx", auxiliary)):
            Path(folder, path).write_bytes(data)
        reader = LanceFileReader(str(Path(folder, "index.idx")))
        metadata = reader.metadata().schema.metadata
        inverted.append(bytes(reader.read_global_buffer(int(metadata[b"lance:ivf"]))))
        reader = LanceFileReader(str(Path(folder, "auxiliary.idx")))
        (storage,) = json.loads(reader.metadata().schema.metadata[b"storage_metadata"])
        position = json.loads(storage)["codebook_position"]
        codebooks.append(bytes(reader.read_global_buffer(position)))
    return inverted, codebooks


def _vector_indexes() -> Iterator[tuple[str, bytes, bytes]]:
    files = golden_files()
    for path, data in files.items():
        if path.endswith("/index.idx"):
            with tempfile.TemporaryDirectory() as folder:
                yield folder, data, files[path.replace("index.idx", "auxiliary.idx")]


@cache
def origins() -> list[bytes]:
    """Where rows of a quarantine come from."""
    return [f"{UNSHARDED_ID}/0123abcd_gen_{n}/{n}".encode() for n in (1, 12)]


@cache
def names() -> list[bytes]:
    """Names of folders and files of a table."""
    parts = {part for path in golden_files() for part in path.split("/")}
    return sorted(part.encode() for part in parts)


@cache
def documents() -> dict[str, list[bytes]]:
    """JSON documents: storage options, rules of quality, policies, and snapshots of a catalog."""
    from memwal.catalog.records import SNAPSHOT_FORMAT, ManagedTable
    from memwal.jobs.policy import Policy

    options = {"aws_region": "eu-central-1", "allow_http": "true", "timeout": 30}
    rules = {
        "mode": "warn",
        "suite": [
            {
                "type": "expect_column_values_to_be_between",
                "kwargs": {"column": "n", "min_value": 0, "max_value": 99},
            }
        ],
    }
    policy = {**Policy().to_dict(), "quality": rules, "tags": ["night"]}
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    table = ManagedTable(
        name="flights",
        uri="s3://lake/flights.lance",
        storage_options_ref=None,
        policy=Policy(),
        owner="team",
        enabled=True,
        created_at=moment,
        updated_at=moment,
    ).to_dict()
    catalog = {
        "format": SNAPSHOT_FORMAT,
        "tables": [table, {**table, "name": "other", "policy": policy}],
    }
    made = {"options": options, "rules": rules, "catalog": catalog}
    return {name: [json.dumps(content).encode()] for name, content in made.items()}


def _files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()]


def _has_writer(data: bytes) -> bool:
    try:
        return decode_entry(data, name="sample").writer_id is not None
    except MemWalError:
        return False


def _lance_rows(data: bytes) -> pa.Table:
    from lance.file import LanceFileReader

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.lance")
        path.write_bytes(data)
        return LanceFileReader(str(path)).read_all().to_table()


ROWS: Final = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "text": ["one", None, "", "four ä"],
        "color": pa.array(["red", "blue", "red", None]).dictionary_encode(),
        "tags": [["a", None], [], None, ["b"]],
        "place": [{"x": 1.5, "name": "n"}, None, {"x": None, "name": None}, {"x": 0.0, "name": ""}],
        "price": pa.array([1, 2, None, 4], pa.decimal128(20, 2)),
        "vector": pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32(), 2)),
        "map": pa.array([[("k", 1)], [], None, []], pa.map_(pa.string(), pa.int32())),
        "_tombstone": [False, False, True, False],
    }
)


def _nested_entry() -> bytes:
    batches = ROWS.to_batches()
    return encode_entry(
        [*batches, *batches], schema=ROWS.schema, writer_epoch=3, generation=2, writer_id="w"
    )


def _step_entry() -> bytes:
    rows = ROWS.select(["id", "text", "_tombstone"])
    encoder = EntryEncoder(rows.schema, writer_epoch=3, writer_id="w")
    return encoder.encode(
        rows.to_batches(), generation=2, applied={"query": NewestStep(7, "first")}
    ).data


DESCRIBED: Final = {"writer_epoch": "1", "generation": "1"}


def foreign_entry(rows: pa.Table, **options: Any) -> bytes:
    """A log entry of a client that writes no checksum."""
    sink = io.BytesIO()
    schema = rows.schema.with_metadata(DESCRIBED)
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(rows.cast(schema))
    return sink.getvalue()


def _made_streams() -> Iterator[bytes]:
    long = pa.table({"id": pa.array(range(2_000)), "text": ["x" * (n % 7) for n in range(2_000)]})
    views = pa.table({"id": [1, 2], "text": pa.array(["a" * 20, "b"], pa.string_view())})
    typed = pa.table(
        {
            "id": [1],
            "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"u" * 16], pa.binary(16))),
            "tensor": pa.ExtensionArray.from_storage(
                pa.fixed_shape_tensor(pa.float32(), [2]),
                pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
            ),
        }
    )
    for rows, codec in ((ROWS, "lz4"), (long, "zstd"), (views, None), (typed, None)):
        yield foreign_entry(rows, compression=codec)
    yield _deltas()


def _deltas() -> bytes:
    """A stream whose dictionaries grow from batch to batch."""
    sink = io.BytesIO()
    schema = pa.schema([("id", pa.dictionary(pa.int8(), pa.string()))], metadata=DESCRIBED)
    options: Any = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for values in (["a"], ["a", "b"], ["a", "b", "c"]):
            column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), values)
            writer.write_batch(pa.record_batch([column], schema))
    return sink.getvalue()
