"""Settings and folder of one run of the demo."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from flightdata import KEY, SCHEMA, load
from stream import Batch, EventStream, Integers

import memwal
from memwal.region.hashing import bucket
from memwal.region.router import Router

REGIONS = 8
REGION_SPEC = memwal.RegionSpec.bucket(KEY, REGIONS)
REGION_IDS = [region.region_id for region in Router(REGION_SPEC, SCHEMA).assignments() or ()]
"""Ids of the regions, in the order of their bucket numbers."""

KEY_INDEX = "flight_key_idx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings with which a run starts or resumes.

    Attributes
    ----------
    table : str
        URI of the table.
    rows : int or None
        Number of flights, the earliest of the year; None for all 336,776.
    producers : int
        Number of writing processes.
    airflow : bool
        Whether Airflow and Spark maintain the table, or a thread of the demo.
    slice_minutes : int
        Minutes of the year per batch.
    seconds : float
        Time over which the producers spread the year; 0 for full speed.
    memtable_rows : int
        Rows after which a region flushes a generation.
    storage_options_file : str or None
        JSON file with the storage options of the table.
    """

    table: str
    rows: int | None = None
    producers: int = 3
    airflow: bool = True
    slice_minutes: int = 3 * 60
    seconds: float = 0.0
    memtable_rows: int = 5_000
    storage_options_file: str | None = None

    def save(self, folder: Path) -> None:
        """Write the settings into the folder of the run."""
        write_json(folder / "settings.json", asdict(self))

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read the settings of a run."""
        return cls(**json.loads((folder / "settings.json").read_text()))

    def storage_options(self) -> dict[str, str]:
        """Read the storage options of the table."""
        if self.storage_options_file is None:
            return {}
        options: dict[str, str] = json.loads(Path(self.storage_options_file).read_text())
        return options

    def open_table(self) -> memwal.Table:
        """Open the table."""
        return memwal.open(self.table, storage_options=self.storage_options())

    def stream(self) -> EventStream:
        """Return every event of the run."""
        return EventStream.of(load(self.rows), slice_minutes=self.slice_minutes)

    def regions_of(self, producer: int) -> list[int]:
        """Return the region numbers of a producer: each region has exactly one producer."""
        return list(range(REGIONS))[producer :: self.producers]


def regions_of_flights(stream: EventStream) -> Integers:
    """Return the region number of each flight, as the table routes its rows."""
    return bucket(stream.flights.facts[KEY], REGIONS).astype("int64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a producer, stored in its progress file.

    Attributes
    ----------
    acknowledged : int
        The table has acknowledged every batch with a lower number.
    batches : int
        Number of batches of the stream.
    upserts, deletes : int
        Rows and keys in the acknowledged batches.
    calls : int
        Calls of ``upsert`` and ``delete``, each durable when it returned.
    starts : int
        How many times the producer was started.
    seconds : float
        Time spent in acknowledged batches, over all starts.
    done : bool
        The writer is closed: everything is flushed.
    """

    acknowledged: int = 0
    batches: int = 0
    upserts: int = 0
    deletes: int = 0
    calls: int = 0
    starts: int = 0
    seconds: float = 0.0
    done: bool = False

    @property
    def writes(self) -> int:
        """Return upserts plus deletes."""
        return self.upserts + self.deletes

    def after(self, batch: Batch, *, seconds: float) -> Progress:
        """Return the progress after `batch`, which took `seconds`, is acknowledged."""
        upserts, deletes = batch.upserts.num_rows, batch.deletes.num_rows
        return replace(
            self,
            acknowledged=batch.number + 1,
            upserts=self.upserts + upserts,
            deletes=self.deletes + deletes,
            calls=self.calls + bool(upserts) + bool(deletes),
            seconds=self.seconds + seconds,
        )

    def save(self, path: Path) -> None:
        """Replace the file atomically: a reader sees the old or the new progress."""
        write_json(path, asdict(self))

    @classmethod
    def of(cls, path: Path) -> Progress:
        """Read a progress file; without one, the producer has written nothing."""
        return cls(**json.loads(path.read_text())) if path.exists() else cls()


def progress_file(folder: Path, producer: int) -> Path:
    """Return the path of a producer's progress file."""
    return folder / f"producer-{producer}.json"


def write_json(path: Path, content: object) -> None:
    """Replace a file atomically: a process that is killed leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=2))
    temporary.replace(path)
