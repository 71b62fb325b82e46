"""Random plays around a table with blobs: writers of memwal and Lance, jobs, and appends.

The appends are beside the log, as those of LanceDB.

After each act every acknowledged blob is read as it was given.
"""

import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from support.data.blobs import MARKED, V2, VERSIONS, Value, read, rows, schema, stored
from support.data.tables import collect_now

import memwal
from memwal.region.router import UNSHARDED_ID

_KEYS = 12
_ACTS = 14


class _Play:
    """A table, and the blob that each of its keys must have."""

    def __init__(self, kind: str, folder: Path, seed: int) -> None:
        self.kind = kind
        self.draw = random.Random(f"{kind} {seed}")
        (folder / "media").mkdir()
        self.media = folder / "media" / "file"
        self.media.write_bytes(bytes(range(256)) * 20)
        created = memwal.create(
            folder / "t.lance",
            schema(kind, key=False),
            primary_key="id",
            data_storage_version=VERSIONS[kind],
        )
        self.table = memwal.open(created.uri, allow_external=[f"file://{folder}/media"])
        self.blobs: dict[int, bytes | None] = {}
        self.numbers: dict[int, int] = {}
        self.natives: list[Any] = []
        self.next_key = 1_000
        self.has_log = False

    def value(self) -> tuple[Value, bytes | None]:
        """Return a value to write, and the bytes to be read."""
        size = self.draw.choice([0, 1, 900, 3_000, 9_000, 40_000])
        start = self.draw.randrange(256)
        if self.kind == V2 and self.draw.random() < 0.3:
            data = self.media.read_bytes()
            if size == 0:
                return lance.Blob.from_uri(f"file://{self.media}"), data
            address = f"file://{self.media}"
            part = min(size, len(data) - start)
            return lance.Blob.from_uri(address, position=start, size=part), data[start:][:part]
        if self.draw.random() < 0.15:
            return None, None
        data = bytes([start]) * size
        return data, data

    def rows(self) -> tuple[pa.Table, dict[int, bytes | None]]:
        keys = self.draw.sample(range(_KEYS), self.draw.randint(1, 4))
        values = [self.value() for _ in keys]
        given = rows(self.kind, keys, [value for value, _ in values], key=False)
        return given, dict(zip(keys, (data for _, data in values), strict=True))

    def write(self) -> None:
        with_flush = self.draw.random() < 0.6
        writer = self.table.writer()
        for _ in range(self.draw.randint(1, 3)):
            act = self.draw.random()
            if act < 0.6:
                given, blobs = self.rows()
                writer.upsert(given)
                self.blobs |= blobs
                self.numbers |= {key: key for key in blobs}
            elif act < 0.8:
                key, number = self.draw.randrange(_KEYS), self.draw.randrange(1_000)
                writer.upsert(pa.table({"id": [key], "n": [number]}), partial=True)
                self.blobs.setdefault(key, None)
                self.numbers[key] = number
            else:
                key = self.draw.randrange(_KEYS)
                writer.delete([key])
                self.blobs.pop(key, None)
                self.numbers.pop(key, None)
        if with_flush:
            writer.close()
        else:
            writer.abort()
        self.has_log = not with_flush

    def write_by_lance(self) -> None:
        dataset = lance.dataset(self.table.uri)
        native = dataset.mem_wal_writer(str(UNSHARDED_ID))
        for _ in range(self.draw.randint(1, 2)):
            given, blobs = self.rows()
            native.put(given.cast(dataset.schema))
            self.blobs |= blobs
            self.numbers |= {key: key for key in blobs}
        self.has_log = self.draw.random() < 0.5
        if self.has_log:
            # It stays open, as if its process slept.
            self.natives.append(native)
        else:
            native.close()

    def append(self) -> None:
        """Append rows of new keys beside the log, as LanceDB's ``add`` does."""
        keys = [self.next_key, self.next_key + 1]
        self.next_key += 2
        values = [bytes([key % 256]) * 2_000 for key in keys]
        lance.write_dataset(rows(self.kind, keys, values), self.table.uri, mode="append")
        self.blobs |= dict(zip(keys, values, strict=True))
        self.numbers |= {key: key for key in keys}

    def merge(self) -> None:
        assert not self.table.merge(max_tasks=self.draw.randint(1, 3)).warnings

    def compact(self) -> None:
        self.table.compact(min_fragments=2, deleted_percent=1)

    def collect(self) -> None:
        collect_now(self.table, orphan_grace_seconds=0, version_retention_seconds=0)

    def check(self) -> None:
        fresh = self.table.fresh()
        found = fresh.scan(blob_handling="all_binary").to_table()
        ids = found.column("id").to_pylist()
        assert dict(zip(ids, found.column("image").to_pylist(), strict=True)) == self.blobs
        assert dict(zip(ids, found.column("n").to_pylist(), strict=True)) == self.numbers
        keys = [*self.blobs, 999]
        assert read(fresh.take_blobs(keys, "image")) == [*self.blobs.values(), None]
        described = fresh.lookup(keys[:-1]).to_table().column("image").to_pylist()
        sizes = [None if data is None else len(data) for data in self.blobs.values()]
        # The size of a whole external blob is not stored.
        whole = len(self.media.read_bytes())
        assert [None if blob is None else blob["size"] or 0 for blob in described] == [
            0 if size == whole else size for size in sizes
        ]

    def finish(self) -> None:
        with self.table.writer() as writer:
            writer.delete([999])
        self.table.merge()
        self.check()
        assert stored(self.table.uri) == self.blobs
        assert not [f for f in self.table.verify().findings if f.code != "fragments-unindexed"]


def _act(play: _Play) -> str:
    acts = {
        "write": 5,
        "write_by_lance": 3,
        "append": 1,
        "merge": 3,
        "compact": 1,
        "collect": 2,
    }
    (name,) = play.draw.choices([*acts], [*acts.values()])
    getattr(play, name)()
    return name


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", [MARKED, V2])
def test_every_blob_is_read_as_it_was_given(tmp_path: Path, kind: str, seed: int) -> None:
    play = _Play(kind, tmp_path, seed)
    done = []
    for _ in range(_ACTS):
        done.append(_act(play))
        try:
            play.check()
        except BaseException:
            print("acts:", done)
            raise
    play.finish()
