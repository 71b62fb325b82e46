"""Write the golden files of this folder with pylance: ``python make_golden.py [folder]``.

Everything here is Lance's own work; nothing of memwal takes part. ``golden.json`` tells what went
in. Names and times that Lance draws afresh on every run (generation tokens, index ids) differ from
run to run, all else must not.
"""

import gzip
import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import CompactedSsTable

REGION = "5b8e1f0c-6a34-4c1e-9d52-0f8a7b3c2d11"
OTHER_REGION = "c0ffee00-1234-4abc-8def-001122334455"

KEY_TYPES: dict[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
}

# Values at the edges of each type; a key row takes the value at its number, modulo their count.
EDGES: dict[str, list[Any]] = {
    "int8": [0, 1, -1, 127, -128, 5],
    "int16": [0, 1, -1, 32767, -32768],
    "int32": [0, 1, -1, 2**31 - 1, -(2**31), 77, -1000],
    "int64": [0, 1, -1, 2**63 - 1, -(2**63), 256, -257],
    "uint8": [0, 1, 255, 128],
    "uint16": [0, 1, 65535, 256, 32768],
    "uint32": [0, 1, 2**32 - 1, 2**31],
    "uint64": [0, 1, 2**64 - 1, 2**63, 255],
    "bool": [False, True],
    "string": ["", "a", "a\0", "a\0b", "ab", "é", "日本語", "k" * 7, "k" * 8, "k" * 31],
    "large_string": ["", "z\0\0", "z", "zz"],
    "binary": [b"", b"\0", b"\0\xff", b"\xff", b"\0\0", b"abcdefg", b"abcdefgh", bytes(range(32))],
    "large_binary": [b"", b"\0\1", b"\xff\xff"],
}

# What the key of each filter is made of, and how many keys it takes.
BLOOM_CASES: dict[str, tuple[tuple[str, ...], int]] = {
    **{name: ((name,), 300) for name in ("int32", "int64", "string", "binary")},
    **{
        name: ((name,), 60)
        for name in KEY_TYPES
        if name not in ("int32", "int64", "string", "binary")
    },
    "int64+string": (("int64", "string"), 300),
    "string+int32+binary": (("string", "int32", "binary"), 300),
    "all": (tuple(KEY_TYPES), 90),
}
PK_INDEX_CASES = ("int64+string", "string+int32+binary", "all")


def value(type_name: str, row: int) -> Any:
    """Return the value of a key column in a row: an edge first, then something regular."""
    edges = EDGES[type_name]
    if row < len(edges) or type_name in ("bool",):
        return edges[row % len(edges)]
    if type_name == "string":
        return f"key-{row}" + "x" * (row % 23)
    if type_name == "large_string":
        return f"large-{row}"
    if type_name == "binary":
        return struct.pack("<I", row * row) * (row % 5)
    if type_name == "large_binary":
        return struct.pack(">H", row)
    if type_name in ("int64", "uint64"):
        return row**7
    return row * 7 % (100 if type_name in ("int8", "uint8") else 30_000)


def key_rows(types: Sequence[str], count: int) -> list[tuple[Any, ...]]:
    """Return the keys of a case."""
    return [tuple(value(name, row) for name in types) for row in range(count)]


def key_schema(types: Sequence[str]) -> pa.Schema:
    """Return a table schema with these key columns and one value column."""
    fields = []
    for number, name in enumerate(types):
        metadata = {"lance-schema:unenforced-primary-key": "true"}
        if len(types) > 1:
            metadata["lance-schema:unenforced-primary-key:position"] = str(number + 1)
        fields.append(pa.field(f"k{number}", KEY_TYPES[name], nullable=False, metadata=metadata))
    return pa.schema([*fields, pa.field("value", pa.float32())])


def key_table(types: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Return a table of these keys."""
    schema = key_schema(types)
    columns = [
        pa.array([row[number] for row in rows], schema.field(number).type)
        for number in range(len(types))
    ]
    return pa.table([*columns, pa.array([1.0] * len(rows), pa.float32())], schema=schema)


def make_keys(scratch: Path, folder: Path) -> dict[str, Any]:
    """Flush one generation per kind of key; keep its filter and its key index."""
    made = {}
    (folder / "keys").mkdir(parents=True)
    for case, (types, count) in BLOOM_CASES.items():
        rows = key_rows(types, count)
        uri = scratch / f"keys-{case}.lance"
        dataset = lance.write_dataset(key_table(types, rows[:1]), uri)
        dataset.initialize_mem_wal(maintained_indexes=[], unsharded=True)
        with lance.dataset(uri).mem_wal_writer(REGION) as writer:
            writer.put(key_table(types, rows))
        (generation,) = (uri / "_mem_wal" / REGION).glob("*_gen_1")
        packed = gzip.compress((generation / "bloom_filter.bin").read_bytes(), mtime=0)
        (folder / "keys" / f"{case}.bloom.gz").write_bytes(packed)
        if case in PK_INDEX_CASES:
            shutil.copytree(generation / "_pk_index", folder / "keys" / f"{case}.pk_index")
        made[case] = {"types": list(types), "rows": [[plain(v) for v in row] for row in rows]}
    return made


def plain(key: Any) -> Any:
    """Return a key value as JSON can hold it: bytes as hexadecimal digits."""
    return key.hex() if isinstance(key, bytes) else key


def make_region(scratch: Path, folder: Path) -> dict[str, Any]:
    """Let two writers use a region in turn; keep its manifests and its WAL."""
    schema = pa.schema(
        [
            pa.field(
                "id",
                pa.int64(),
                nullable=False,
                metadata={"lance-schema:unenforced-primary-key": "true"},
            ),
            pa.field("name", pa.string(), metadata={"unit": "none"}),
            pa.field("vector", pa.list_(pa.float32(), 2)),
            pa.field("color", pa.dictionary(pa.int8(), pa.string())),
        ]
    )

    def rows(ids: list[int]) -> pa.Table:
        return pa.Table.from_pylist(
            [
                {
                    "id": number,
                    "name": None if number % 3 == 0 else f"name {number}",
                    "vector": [float(number), 0.5],
                    "color": ("red", "green")[number % 2],
                }
                for number in ids
            ],
            schema=schema,
        )

    uri = scratch / "region.lance"
    lance.write_dataset(rows([1]), uri).initialize_mem_wal(maintained_indexes=[], unsharded=True)
    puts = [[100, 101, 102], [103], [200]]
    deleted = [101]
    with lance.dataset(uri).mem_wal_writer(REGION) as writer:
        writer.put(rows(puts[0]))
        writer.put(rows(puts[1]))
    with lance.dataset(uri).mem_wal_writer(REGION) as writer:
        writer.put(rows(puts[2]))
        writer.delete(pa.table({"id": pa.array(deleted, pa.int64())}))
    for part in ("manifest", "wal"):
        (folder / part).mkdir(parents=True)
        for path in (uri / "_mem_wal" / REGION / part).iterdir():
            if path.suffix != ".json":
                number = int(path.stem[::-1], 2)
                (folder / part / f"{number}{path.suffix}").write_bytes(path.read_bytes())
    return {"region_id": REGION, "puts": puts, "deleted": deleted}


def make_table(scratch: Path, folder: Path) -> dict[str, Any]:
    """Keep manifests of a table before MemWAL, with its configuration, and with progress."""
    schema = key_schema(["int64"])
    uri = scratch / "table.lance"

    def rows(ids: list[int]) -> pa.Table:
        return key_table(["int64"], [(number,) for number in ids])

    dataset = lance.write_dataset(rows(list(range(100))), uri)
    versions = {"plain": dataset.version}
    dataset.create_scalar_index("k0", "BTREE", name="k0_idx")
    dataset = lance.dataset(uri)
    dataset.initialize_mem_wal(
        maintained_indexes=["k0_idx"],
        bucket_column="k0",
        num_buckets=4,
    )
    versions["configured"] = lance.dataset(uri).version
    for generations in ([(REGION, 1), (OTHER_REGION, 3)], [(REGION, 2)]):
        merge = lance.dataset(uri).merge_insert("k0")
        merge.when_matched_update_all().when_not_matched_insert_all()
        merge.mark_sstables_as_compacted([CompactedSsTable(*each) for each in generations])
        merge.execute(rows([1000 + generations[0][1]]))
        if generations[0][1] == 1:
            lance.dataset(uri).optimize.optimize_indices()
    versions["merged"] = lance.dataset(uri).version
    (folder / "table").mkdir(parents=True)
    for name, version in versions.items():
        keep_manifest(uri, version, folder / "table" / f"{name}.manifest")

    with_defaults = scratch / "defaults.lance"
    dataset = lance.write_dataset(rows([1]), with_defaults)
    dataset.initialize_mem_wal(identity_column="k0", max_memtable_rows=5000)
    keep_manifest(with_defaults, 2, folder / "table" / "defaults.manifest")
    return {
        "columns": schema.names,
        "num_buckets": 4,
        "max_memtable_rows": 5000,
        "maintained_indexes": ["k0_idx"],
        "merged": {REGION: 2, OTHER_REGION: 3},
        "catchup": {"k0_idx": {REGION: 1, OTHER_REGION: 3}},
    }


def keep_manifest(uri: Path, version: int, target: Path) -> None:
    """Copy a table's manifest of a version."""
    source = uri / "_versions" / f"{(1 << 64) - 1 - version:020d}.manifest"
    target.write_bytes(source.read_bytes())


def make(folder: Path) -> None:
    """Write all golden files to ``folder``, which must not hold any yet."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        told = {
            "pylance": lance.__version__,
            "keys": make_keys(scratch, folder),
            "region": make_region(scratch, folder / "region"),
            "table": make_table(scratch, folder),
        }
    (folder / "golden.json").write_text(as_json(told) + "\n")


def as_json(told: dict[str, Any]) -> str:
    """Return JSON with one line per entry of the second level."""
    parts = []
    for name, part in told.items():
        if isinstance(part, dict):
            lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(part[key])}" for key in part)
            parts.append(f"{json.dumps(name)}: {{\n{lines}\n}}")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(part)}")
    return "{\n" + ",\n".join(parts) + "\n}"


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
