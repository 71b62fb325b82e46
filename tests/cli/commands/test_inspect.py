"""``memwal inspect``."""

import re
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from support.data.tables import REGION, folder, keys, log, manifest, rows

from memwal.format.paths import wal_key


@pytest.fixture
def written(table):
    """An unsharded table with a flushed generation and one open write of three rows."""
    table.upsert(rows({1: 1, 2: 2}))
    with table.writer() as writer:
        writer.upsert(rows({3: 3}))
        writer.upsert(rows({4: 4}))
        writer.delete(keys(1))
        yield table


class TestManifest:
    def test_newest(self, cli, written):
        newest = manifest(written)
        found = cli("inspect", "manifest", written.uri, REGION, "--json").json
        assert found.pop("flushed") == [
            {
                "generation": flushed.generation,
                "path": flushed.path,
                "rows": flushed.rows,
                "memory_bytes": flushed.memory_bytes,
                "key_bytes": flushed.key_bytes,
            }
            for flushed in newest.flushed
        ]
        assert found == {
            "region_id": str(REGION),
            "version": newest.version,
            "writer_epoch": 2,
            "status": "active",
            "current_generation": newest.current_generation,
            "replay_after": newest.replay_after,
            "wal_last_seen": newest.wal_last_seen,
            "spec_id": 1,
            "region_fields": {name: value.hex() for name, value in newest.region_fields},
        }

    def test_an_older_version(self, cli, written):
        found = cli("inspect", "manifest", written.uri, REGION, "--version", 1, "--json").json
        assert (found["version"], found["writer_epoch"], found["flushed"]) == (1, 1, [])

    def test_text(self, cli, written):
        text = cli("inspect", "manifest", written.uri, REGION).stdout
        assert re.search(r"^writer_epoch +2$", text, re.MULTILINE)
        assert manifest(written).flushed[0].path in text

    def test_absent(self, cli, written):
        version = cli("inspect", "manifest", written.uri, REGION, "--version", 99)
        assert version.code == 2
        assert "99" in version.stderr
        nowhere = uuid4()
        region = cli("inspect", "manifest", written.uri, nowhere)
        assert region.code == 2
        assert str(nowhere) in region.stderr


class TestWal:
    def test_newest(self, cli, written):
        position, entry = list(log(written).items())[-1]
        found = cli("inspect", "wal", written.uri, REGION, "--json").json
        assert found == {
            "region_id": str(REGION),
            "position": position,
            "writer_epoch": 2,
            "generation": 2,
            "sentinel": False,
            "writer_id": entry.writer_id,
            "checksum": "ok",
            "bytes": (folder(written) / wal_key(REGION, position)).stat().st_size,
            "rows": 1,
            "first_rows": [{"id": 1, "n": None, "text": None, "_tombstone": True}],
        }

    def test_a_sentinel(self, cli, written):
        position = next(p for p, entry in log(written).items() if entry.is_sentinel)
        found = cli("inspect", "wal", written.uri, REGION, position, "--json").json
        assert (found["sentinel"], found["rows"], found["first_rows"]) == (True, 0, [])

    def test_rows_as_a_table(self, cli, written):
        position = min(p for p, entry in log(written).items() if entry.batches)
        text = cli("inspect", "wal", written.uri, REGION, position).stdout
        assert re.search(r"^checksum +ok$", text, re.MULTILINE)
        assert "1=1" in text
        assert "2=2" in text
        text = cli("inspect", "wal", written.uri, REGION, position, "--rows", 1).stdout
        assert "1=1" in text
        assert "2=2" not in text
        assert re.search(r"^rows +2$", text, re.MULTILINE)

    def test_long_values_are_cut(self, cli, make_table):
        import pyarrow as pa

        schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
        table = make_table(schema)
        table.upsert(pa.table({"id": [1], "text": ["x" * 500]}))
        text = cli("inspect", "wal", table.uri, REGION).stdout
        assert "x" * 30 in text
        assert "x" * 60 not in text
        assert cli("inspect", "wal", table.uri, REGION, "--json").json["first_rows"] == [
            {"id": 1, "text": "x" * 500, "_tombstone": False}
        ]

    def test_damaged(self, cli, written):
        path = folder(written) / wal_key(REGION, max(log(written)))
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
        answer = cli("inspect", "wal", written.uri, REGION)
        assert answer.code == 1
        assert "checksum" in answer.stderr

    def test_absent(self, cli, written):
        answer = cli("inspect", "wal", written.uri, REGION, 99)
        assert answer.code == 2
        assert "99" in answer.stderr


class TestDetails:
    def test_before_and_after_the_jobs(self, cli, backlog):
        before = cli("inspect", "details", backlog.uri, "--json").json
        assert before["merged"] == {}
        assert before["snapshot_taken"] is None
        old = before["version"]
        backlog.checkpoint()
        backlog.build_snapshot()
        found = cli("inspect", "details", backlog.uri, "--json").json
        progress = {str(region): 3 for region in backlog.region_ids()}
        assert found["merged"] == progress
        assert found["catchup"] == {"id_idx": progress}
        assert found["region_specs"] == {"1": "bucket(id, 2)"}
        assert found["primary_key"] == ["id"]
        assert found["num_regions"] == 2
        assert found["snapshot_bytes"] > 0
        assert datetime.fromisoformat(found["snapshot_taken"]).tzinfo == UTC
        again = cli("inspect", "details", backlog.uri, "--version", old, "--json").json
        assert again == before

    def test_text(self, cli, backlog):
        before = cli("inspect", "details", backlog.uri).stdout
        backlog.checkpoint()
        text = cli("inspect", "details", backlog.uri).stdout
        assert "1=bucket(id, 2)" in text
        assert "id_idx" in text
        for region in backlog.region_ids():
            assert str(region) in text
            assert str(region) not in before

    def test_absent(self, cli, backlog):
        answer = cli("inspect", "details", backlog.uri, "--version", 999)
        assert answer.code == 2
        assert "999" in answer.stderr
