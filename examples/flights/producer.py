"""One producer: reads the whole stream and writes the regions that it owns.

    python producer.py FOLDER NUMBER

FOLDER is the folder of a run, with its settings. The producer resumes after the last acknowledged
batch in its progress file. After a kill it can be started again: a batch that was written but not
recorded is sent again, which changes nothing, because the same rows follow each other in the same
order. It ends when its parent process ends.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from run import REGION_IDS, Progress, Settings, progress_file, regions_of_flights
from stream import EventStream

import memwal


def own_stream(settings: Settings, producer: int) -> EventStream:
    """The events of the producer's regions."""
    stream = settings.stream()
    return stream.only(np.isin(regions_of_flights(stream), settings.regions_of(producer)))


def produce(folder: Path, producer: int) -> None:
    """Write the batches that are not acknowledged yet."""
    parent = os.getppid()
    settings = Settings.of(folder)
    path = progress_file(folder, producer)
    stream = own_stream(settings, producer)
    progress = Progress.of(path)
    progress = replace(progress, batches=stream.batches, starts=progress.starts + 1, done=False)
    progress.save(path)
    with settings.open_table().writer(
        options=memwal.WriterOptions(max_memtable_rows=settings.memtable_rows),
        region_ids=[REGION_IDS[region] for region in settings.regions_of(producer)],
    ) as writer:
        first = progress.acknowledged
        start = time.monotonic()
        for batch in stream.read(first):
            if os.getppid() != parent:
                raise SystemExit("whoever started this producer is gone")
            due = start + settings.seconds * (batch.number - first) / stream.batches
            time.sleep(max(0.0, due - time.monotonic()))
            before = time.monotonic()
            if batch.upserts.num_rows:
                writer.upsert(batch.upserts)
            if batch.deletes.num_rows:
                writer.delete(batch.deletes)
            progress = progress.after(batch, seconds=time.monotonic() - before)
            progress.save(path)
    replace(progress, acknowledged=stream.batches, done=True).save(path)


if __name__ == "__main__":
    try:
        produce(Path(sys.argv[1]), int(sys.argv[2]))
    except (memwal.MemWalError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
