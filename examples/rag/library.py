"""Documents in a table that is searched while it is written."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType

import lance
import pyarrow as pa
from documents import Changes, chunks
from embed import Embed

import memwal
from memwal.errors import ConflictError
from memwal.reading_writer import Writer

SOURCE = "library"
_PARTITIONS = 4


class Library:
    """The chunks of documents, one row each; those of one document are in one region.

    A document is replaced in one step: no reader sees a mixture of old and new chunks, and a step
    that is repeated after a crash changes nothing.

    Parameters
    ----------
    uri : str
    embed : callable
        Texts to vectors.
    """

    def __init__(self, uri: str, embed: Embed) -> None:
        self.table = memwal.open(uri)
        self._embed = embed
        self.writer: Writer = self.table.writer(options=memwal.WriterOptions(max_memtable_age=1.0))

    @classmethod
    def create(cls, uri: str, embed: Embed, documents: Mapping[str, str]) -> Library:
        """Create the table from some documents, on which the vector index is trained."""
        rows = _rows(documents, embed)
        if rows.num_rows < 256:
            raise ValueError(f"{rows.num_rows} chunks are too few to train a codebook of 256 on")
        lance.write_dataset(rows, uri)
        base = lance.dataset(uri)
        width = base.schema.field("vector").type.list_size
        base.create_index(
            "vector",
            "IVF_PQ",
            metric="cosine",
            num_partitions=_PARTITIONS,
            num_sub_vectors=width // 8,
        )
        base.create_scalar_index("text", "INVERTED", with_position=True)
        memwal.enable(
            uri,
            primary_key=["doc", "part"],
            region_spec=memwal.RegionSpec.bucket("doc", 4),
            maintained_indexes=["vector_idx", "text_idx"],
        )
        return cls(uri, embed)

    def progress(self) -> int:
        """Return the number of the newest step; some regions may lack that one."""
        return max(self.table.applied(SOURCE).values(), default=0)

    def change(self, changes: Changes, *, step: int) -> None:
        """Add new documents, replace changed ones, and withdraw others."""
        rows = _rows({doc: text for doc, text in changes.items() if text is not None}, self._embed)
        names = ", ".join("'{}'".format(doc.replace("'", "''")) for doc in changes)
        before = self.writer.scan(columns=["doc", "part"], filter=f"doc in ({names})").to_table()
        kept = rows.select(["doc", "part"])
        gone = before.join(kept, ["doc", "part"], join_type="left anti")
        self.writer.apply(upserts=rows, deletes=gone, source=SOURCE, version=step)

    def close(self) -> None:
        """Flush and close."""
        self.writer.close()

    def __enter__(self) -> Library:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.writer.__exit__(kind, error, trace)


class Upkeep:
    """Runs the jobs in a loop on a thread; in production, use Airflow or a fleet."""

    def __init__(self, table: memwal.Table, *, seconds: float = 1.0) -> None:
        self.runs = 0
        self._table = table
        self._seconds = seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: BaseException | None = None

    def _run(self) -> None:
        while not self._done.wait(self._seconds):
            try:
                self._table.merge()
                self._table.build_indexes()
                self._table.collect_garbage(dry_run=False)
                self.runs += 1
            except ConflictError:
                continue
            except BaseException as error:
                self._failure = error
                return

    def __enter__(self) -> Upkeep:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def _rows(documents: Mapping[str, str], embed: Embed) -> pa.Table:
    """Return a row for each chunk."""
    found = [
        (doc, part, text)
        for doc, whole in sorted(documents.items())
        for part, text in enumerate(chunks(whole))
    ]
    # The name is searched, too.
    vectors = embed([f"{doc}: {text}" for doc, _, text in found])
    columns = [
        pa.array([doc for doc, _, _ in found], pa.string()),
        pa.array([part for _, part, _ in found], pa.int32()),
        pa.array([text for _, _, text in found], pa.string()),
        pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1]),
    ]
    schema = pa.schema(
        [
            pa.field("doc", pa.string(), nullable=False),
            pa.field("part", pa.int32(), nullable=False),
            pa.field("text", pa.string()),
            pa.field("vector", columns[-1].type),
        ]
    )
    return pa.table(columns, schema=schema)
