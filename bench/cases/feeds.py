"""Feeds of changes: speed, bytes read, memory, requests, and what they cost beside a writer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from common import tables
from common.measure import (
    Line,
    Rival,
    Target,
    constant,
    milliseconds,
    rates,
    rounds_of,
    seconds,
)
from common.processes import child_command, child_environment, run_child
from common.s3 import gateway_before, running_emulator

import memwal

_REGIONS = 4
_POLLED_REGIONS = 8
_ROUNDS = 5
_PIECE = 10_000
_BASE_TIMES = 10
_PART = 100  # of the base table is merged, a hundredth of that deleted
_VECTORS = 2  # so many times fewer rows with vectors
_WRITES = 100
_BATCH_ROWS = 8_192
_EXAMPLE = 10  # so many times fewer rows for the example
_MIB = 1 << 20
_EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "embeddings"


def feed_lines(folder: Path, rows: int) -> Iterator[Line]:
    """First reads of what a writer wrote by default options, each in a process of its own."""
    for name, schema, count, make in (
        ("rows of three columns", tables.NARROW, rows, _narrow),
        ("rows with vectors", tables.WIDE, max(rows // _VECTORS, 1), _wide),
    ):
        part = folder / name.replace(" ", "-")
        table = memwal.create(
            str(part / "table"),
            schema,
            primary_key="id",
            region_spec=memwal.RegionSpec.bucket("id", _REGIONS),
        )
        token = table.changes().token
        keys = np.random.default_rng(0).permutation(count)
        with table.writer() as writer:
            for start in range(0, count, _PIECE):
                writer.upsert(make(keys[start : start + _PIECE]))
            writer.flush_wal()
            writer.abort()
        feed = memwal.open(table.uri).changes(token)
        lance.write_dataset(feed.to_table().select(schema.names), str(part / "plain"))
        tasks = {
            "ours": {"side": "ours", "uri": table.uri, "token": token},
            "plain": {"side": "native", "uri": str(part / "plain")},
        }
        calls = {side: partial(_fed, task, count) for side, task in tasks.items()}
        found = {
            side: [each["seconds"] for each in samples] for side, samples in _in_turn(calls).items()
        }
        generations = len(memwal.open(table.uri).scan().explain().generations)
        yield Line(
            name="feed",
            what=f"feed of {count:,} changed {name}",
            ours=rates(count, found["ours"]),
            other=rates(count, found["plain"]),
            unit="rows a processor second",
            against="Lance's scan of the same rows",
            target=Target(0.7, at_least=True),
            note=f"first reads; {_REGIONS} regions, {generations} generations, and logs",
        )
        shutil.rmtree(part)


def merged_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Bytes that a feed reads after a merge of a hundredth of a table, and memory of the whole."""
    count = rows * _BASE_TIMES
    uri, plain = str(folder / "table"), str(folder / "plain")
    tables.write_in_pieces(uri, tables.NARROW, count, lambda ids, _: _narrow(ids), piece=1_000_000)
    spec = memwal.RegionSpec.unsharded()
    table = memwal.enable(uri, primary_key="id", region_spec=spec)
    token = table.changes("now").token
    keys = np.random.default_rng(1).choice(count, max(count // _PART, _PART), replace=False)
    kept = keys[len(keys) // _PART :]
    with table.writer() as writer:
        writer.upsert(_narrow(kept))
        writer.delete({"id": keys[: len(keys) // _PART]})
    table.merge()
    lance.write_dataset(_narrow(kept), plain)
    ours = _fed({"side": "ours", "uri": uri, "token": token}, len(keys))
    other = _fed({"side": "native", "uri": plain}, len(kept))
    yield Line(
        name="merged",
        what=f"bytes that a feed reads after a merge of a hundredth of {count:,} rows",
        ours=constant(ours["bytes"] / _MIB),
        other=constant(other["bytes"] / _MIB),
        unit="MiB",
        against="a table of the changed rows alone",
        target=Target(2),
        note=f"{len(keys):,} random keys, a hundredth of them deleted; generations still stored",
    )
    whole = _fed({"side": "ours", "uri": uri, "token": None}, count - len(keys) + len(kept))
    scan = _fed({"side": "native", "uri": uri}, count - len(keys) + len(kept))
    yield Line(
        name="merged",
        what=f"peak memory of a feed of {count:,} merged rows",
        ours=constant(whole["peak"] / _MIB),
        other=constant(scan["peak"] / _MIB),
        unit="MiB",
        against="Lance's scan",
        target=Target(1.2),
    )


def poll_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Requests of a poll that finds no change."""
    with running_emulator(folder) as emulator, gateway_before(emulator.endpoint) as proxy:
        table = tables.create_narrow(
            f"s3://{emulator.create_bucket()}/table",
            buckets=_POLLED_REGIONS,
            storage_options={**emulator.storage_options, "aws_endpoint": proxy.endpoint},
        )
        with table.writer() as writer:
            writer.upsert(_narrow(np.arange(_PIECE)))
            writer.flush()
            writer.upsert(_narrow(np.arange(_PIECE)))
            token = table.changes().token
            table.changes(token).to_table()
            proxy.taken()
            if table.changes(token).to_table().num_rows:
                raise SystemExit("a poll without changes found some")
            poll = len(proxy.taken())
            table.status()
            status = len(proxy.taken())
    yield Line(
        name="poll",
        what=f"requests to S3 of a poll of {_POLLED_REGIONS} regions without changes",
        ours=constant(float(poll)),
        other=constant(float(status)),
        unit="requests",
        against="of a status",
        rival=Rival.OURS,
        target=Target(1),
    )


def writer_lines(folder: Path, rows: int) -> Iterator[Line]:
    """Durable writes of one row while a consumer in another process polls ten times a second."""
    table = tables.create_narrow(folder / "table")
    count = min(max(rows // 1_000, 1), _WRITES)
    consuming = subprocess.Popen(
        child_command("consuming", {"uri": table.uri}),
        stdout=subprocess.PIPE,
        env=child_environment(),
    )
    try:
        if consuming.stdout is None or not consuming.stdout.readline():
            raise SystemExit("the consumer did not start")
        with tables.open_ours(table) as writer:

            def write(sign: signal.Signals) -> list[float]:
                os.kill(consuming.pid, sign)
                batch = tables.as_stored(tables.narrow_rows(1, 0), table)
                return [seconds(lambda: writer.upsert(batch)) for _ in range(count)]

            found = _in_turn(
                {"with": lambda: write(signal.SIGCONT), "without": lambda: write(signal.SIGSTOP)},
                rounds=4 * _ROUNDS,
            )
    finally:
        consuming.kill()
        consuming.wait()
    attached, alone = ([each for block in found[side] for each in block] for side in found)
    yield Line(
        name="writer",
        what="durable upsert of 1 row with a consumer",
        ours=milliseconds(attached),
        other=milliseconds(alone),
        unit="ms",
        against="without",
        rival=Rival.OURS,
        target=Target(1.05),
        note=f"the consumer polls each 0.1 s, on the same machine; {len(alone):,} samples each",
    )


def example_lines(folder: Path, rows: int) -> Iterator[Line]:
    """A step of examples/embeddings with a function that does nothing, and its write alone."""
    sys.path.append(str(_EXAMPLES))
    from embedder import Embedder

    count, width = max(rows // _EXAMPLE, 1), 8
    schema = pa.schema(
        [("doc", pa.string()), ("text", pa.string()), ("vector", pa.list_(pa.float32(), width))]
    )
    docs = [f"document {number}" for number in range(count)]
    texts = pa.table({"doc": docs, "text": [f"text of {doc}" for doc in docs]})
    vectors = np.zeros((count, width), np.float32)
    found: dict[str, list[float]] = {"ours": [], "bare": []}
    for number in range(rounds_of(_ROUNDS)):
        for side in found:
            table = memwal.create(
                str(folder / f"{side}-{number}"), schema, primary_key="doc", region_spec="unsharded"
            )
            with table.writer() as writer:
                embedder = Embedder(table, writer, lambda read: vectors[: len(read)], budget=1)
                writer.upsert(texts, partial=True)
                started = time.perf_counter()
                done = embedder.step() if side == "ours" else _bare(writer, texts, vectors)
                found[side].append(time.perf_counter() - started)
                if done < count:
                    raise SystemExit(f"{done} rows were embedded instead of {count}")
            shutil.rmtree(folder / f"{side}-{number}")
    yield Line(
        name="example",
        what=f"a step of examples/embeddings over {count:,} changed rows",
        ours=rates(count, found["ours"]),
        other=rates(count, found["bare"]),
        unit="rows/s",
        against="the partial upserts alone",
        rival=Rival.OURS,
        target=Target(0.6, at_least=True),
        note="a function that returns vectors of 8 zeros",
    )


def _bare(writer: memwal.Writer, texts: pa.Table, vectors: np.ndarray) -> int:
    """Write vectors in batches as a feed has them."""
    column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
    rows = pa.table({"doc": texts["doc"], "vector": column})
    for start in range(0, rows.num_rows, _BATCH_ROWS):
        writer.upsert(rows.slice(start, _BATCH_ROWS), partial=True)
    return rows.num_rows


def _in_turn(calls: dict[str, Callable[[], Any]], rounds: int = _ROUNDS) -> dict[str, list[Any]]:
    """What each call returns in some rounds, forwards and backwards in turn."""
    found: dict[str, list[Any]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds_of(rounds)):
        for name in names if number % 2 else reversed(names):
            found[name].append(calls[name]())
    return found


def _fed(task: dict[str, Any], rows: int) -> dict[str, Any]:
    """What a process tells of a feed, after one of a table with a row in the same folder."""
    warm = Path(task["uri"]).with_name("warm")
    if not warm.exists():
        tables.create_narrow(warm).upsert(_narrow(np.arange(1)))
    found = run_child("reading", {"do": "feed", "warm": str(warm), **task})
    if found["rows"] != rows:
        raise SystemExit(f"{found['rows']} rows were read instead of {rows}")
    return found


def _narrow(keys: np.ndarray) -> pa.Table:
    text = np.char.add("text ", keys.astype(np.str_))
    return pa.table({"id": keys, "value": keys / 7, "text": text}, schema=tables.NARROW)


def _wide(keys: np.ndarray) -> pa.Table:
    rows = tables.wide_rows(len(keys), int(keys[0]))
    return rows.set_column(0, tables.WIDE.field("id"), pa.array(keys))
