"""The stream: its driver is killed again and again, and each batch is written once."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import orders_stream
import pyarrow as pa
import pytest

from memwal.region.router import Router

HERE = Path(__file__).parents[2] / "examples" / "streaming"
KEYS = 60
FILES = 8
KILLS = 4


class Changes:
    """Files of changes, which the stream takes one by one, and what each makes of its keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.of_file: list[dict[int, float | None]] = []
        self.by_others: dict[int, dict[int, float]] = {}
        folder.mkdir()
        dice = random.Random(11)
        for number in range(FILES):
            self._add(number, dice)

    def _add(self, number: int, dice: random.Random) -> None:
        lines = []
        last: dict[int, float | None] = {}
        for at in range(number * 100, number * 100 + 30):
            key = dice.randrange(KEYS)
            change: dict[str, Any] = {"id": key, "at": at, "op": "u"}
            if dice.random() < 0.3:
                change["op"], last[key] = "d", None
            else:
                change |= {"customer": f"c{key}", "total": float(at)}
                last[key] = float(at)
            lines.append(json.dumps(change))
        # Lines come in any order: what counts is "at".
        dice.shuffle(lines)
        path = self.folder / f"{number:03}.json"
        path.write_text("\n".join(lines))
        # The stream takes files by their time.
        os.utime(path, (1_700_000_000 + number,) * 2)
        self.of_file.append(last)

    def model(self) -> dict[int, float]:
        """What the table holds in the end."""
        rows: dict[int, float | None] = {}
        for file, last in enumerate(self.of_file):
            rows |= last
            rows |= self.by_others.get(file, {})
        return {key: total for key, total in rows.items() if total is not None}


class Stream:
    """The application, in a process group of its own."""

    def __init__(self, folder: Path, changes: Changes) -> None:
        self.uri = str(folder / "orders.lance")
        self.checkpoint = folder / "checkpoint"
        self.table = orders_stream.open_or_create(self.uri)
        self._command = [
            *(sys.executable, str(HERE / "orders_stream.py"), "--changes", str(changes.folder)),
            *("--table", self.uri, "--checkpoint", str(self.checkpoint), "--files", "1"),
        ]

    def numbers(self, kind: str) -> set[int]:
        return {int(path.name) for path in (self.checkpoint / kind).glob("[0-9]*")}

    def files(self, number: int) -> range:
        """The files of a batch: two, if the driver was killed between noting a file and a batch."""

        def taken(batch: int) -> int:
            lines = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()
            return int(json.loads(lines[-1])["logOffset"]) + 1

        return range(taken(number - 1) if number else 0, taken(number))

    def run_and_kill(self, seconds: float | None) -> None:
        """Kill it so many seconds after it began a batch that was not begun before; without, as
        soon as some region has that batch.

        Spark's Python workers are in a group of their own, and may go on for a moment.
        """
        process = subprocess.Popen(self._command, start_new_session=True)
        begun = self.numbers("offsets")
        deadline = time.monotonic() + 600
        try:
            while self.numbers("offsets") <= begun:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            if seconds is None:
                number = max(self.numbers("offsets"))
                while max(self.applied().values(), default=-1) < number:
                    assert process.poll() is None
                    assert time.monotonic() < deadline
            else:
                time.sleep(seconds)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def finish(self) -> None:
        subprocess.run([*self._command, "--once"], check=True, timeout=1800)

    def applied(self) -> dict[UUID, int]:
        metadata = self.checkpoint / "metadata"
        return self.table.applied(f"spark-query-{json.loads(metadata.read_text())['id']}")

    def found(self) -> dict[int, float]:
        rows = self.table.scan(columns=["id", "total"]).to_table()
        return dict(zip(rows["id"].to_pylist(), rows["total"].to_pylist(), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_driver_is_killed_at_random_moments(tmp_path: Path) -> None:
    """Another producer then changes what the last batch wrote: when the batch comes again, it may
    not bring its rows back, nor those that it deleted."""
    changes = Changes(tmp_path / "changes")
    stream = Stream(tmp_path, changes)
    _, spec = stream.table.region_spec()
    router = Router(spec, stream.table.schema)
    dice = random.Random(5)
    repeated = 0
    for kill in range(KILLS):
        stream.run_and_kill(dice.uniform(0.3, 4) if kill % 2 else None)
        open_batches = stream.numbers("offsets") - stream.numbers("commits")
        if not open_batches:
            continue
        (number,) = open_batches
        files = stream.files(number)
        written = {region for region, version in stream.applied().items() if version >= number}
        keys = [
            key
            for key in set().union(*(changes.of_file[file] for file in files))
            if router.route(pa.record_batch({"id": [key]}))[0][0].region_id in written
        ]
        repeated += bool(keys)
        with stream.table.writer() as producer:
            values = [-1.0 - kill] * len(keys)
            rows = {"id": keys, "customer": ["other"] * len(keys), "total": values}
            producer.upsert(pa.table(rows, schema=orders_stream.SCHEMA))
        changes.by_others.setdefault(files[-1], {}).update(zip(keys, values, strict=True))
    stream.finish()
    assert stream.found() == changes.model()
    newest = max(stream.applied().values())
    assert newest == max(stream.numbers("commits"))
    assert stream.files(newest)[-1] == FILES - 1
    stream.table.checkpoint()
    assert stream.found() == changes.model()
    assert repeated, "no kill came between the table and the checkpoint"
