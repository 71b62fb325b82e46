"""Keep the vectors of documents up to date while a stream changes their texts."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

sys.path.append(str(Path(__file__).resolve().parents[1] / "rag"))
from documents import Changes, corpus, history
from embed import Embed, by_meaning, by_words
from library import Upkeep

import memwal
from memwal.errors import TableSetupError
from memwal.reading_writer import Writer

REGIONS = "bucket:doc:2"
MISSING = "vector IS NULL"


class Embedder:
    """Computes missing vectors: of texts that changed, and of up to ``budget`` old ones a step."""

    def __init__(self, table: memwal.Table, writer: Writer, embed: Embed, budget: int = 100):
        self.writer, self.embed, self.budget = writer, embed, budget
        self.consumer = table.consumer("embeddings", start="now")
        self.has_old = True

    def step(self) -> int:
        """Embed texts that changed since the last step, and old ones; return how many."""
        feed, done = self.consumer.read(columns=["text"], filter=MISSING), 0
        for batch in feed.to_batches():
            batch = batch.filter(pc.equal(batch["_change"], "upsert"))
            done += self.write(batch.select(["doc", "text"]))
        self.consumer.commit(feed.token)
        if self.has_old:
            queries = self.writer.fresh()  # A process that died leaves texts in the log.
            scan = queries.scan(columns=["doc", "text"], filter=MISSING, limit=self.budget)
            self.has_old = (old := self.write(scan.to_table())) > 0
            done += old
        return done

    def write(self, read: pa.Table | pa.RecordBatch) -> int:
        """Write the vectors of texts that are still as they were read."""
        if read.num_rows:
            vectors = self.embed(read["text"].to_pylist())
            column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
            rows = {"doc": read["doc"], "vector": column}
            self.writer.upsert(rows, partial=True, only_if_unchanged=read)
        return read.num_rows


def stream(writer: Writer, table: memwal.Table, steps: Sequence[Changes]) -> None:
    """Write the changes that the table does not have yet; a changed text has no vector."""
    first = max(table.applied("stream").values(), default=0)
    for number, changes in islice(enumerate(steps), first, None):
        rows = [{"doc": doc, "text": text} for doc, text in changes.items() if text is not None]
        gone = [doc for doc, text in changes.items() if text is None]
        new = pa.Table.from_pylist(rows, table.schema)
        writer.apply(upserts=new, deletes=gone, source="stream", version=number)


def run(uri: str, embed: Embed, steps: Sequence[Changes]) -> None:
    """Follow the stream to its end, until every text has its vector."""
    try:
        table = memwal.open(uri)
    except TableSetupError:
        vector = pa.list_(pa.float32(), embed([""]).shape[1])
        schema = pa.schema({"doc": pa.string(), "text": pa.string(), "vector": vector})
        table = memwal.create(uri, schema, primary_key="doc", region_spec=REGIONS)
    if not table.status().mem_wal:  # A process died while it created the table.
        table = memwal.enable(uri, region_spec=REGIONS)
    with table.writer(options=memwal.WriterOptions(max_memtable_age=1.0)) as writer, Upkeep(table):
        stream(writer, table, steps[:1])  # Old texts: the embedder does not run yet.
        streaming = threading.Thread(target=stream, args=(writer, table, steps))
        streaming.start()
        embedder = Embedder(table, writer, embed)
        while streaming.is_alive() + (done := embedder.step()):
            print(f"{done} texts embedded", flush=True)
            streaming.join(timeout=0.05)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", default="docs.lance")
    parser.add_argument("--model", choices=["words", "minilm"], default="words")
    parser.add_argument("--ask", default="wait for the end of a child process")
    given = parser.parse_args()
    model = by_meaning() if given.model == "minilm" else by_words
    run(given.table, model, list(history(dict(islice(corpus().items(), 300)), rounds=100)))
    found = memwal.open(given.table).search(model([given.ask])[0], k=3, columns=["doc"])
    print(*(row["doc"] for row in found.to_pylist()), sep="\n")
