"""Whether everything is there in the end, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import memwal
from load_test.rows import ABSENT, Counts, torn
from load_test.state import Truth
from memwal.jobs.verify.findings import FindingSeverity

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must be so."""

    what: str
    held: bool
    found: str

    @classmethod
    def none_of(cls, what: str, wrong: Sequence[object], among: str) -> Check:
        """There must be none of something."""
        shown = "".join(f"; {one}" for one in wrong[:_SHOWN])
        return cls(what, not len(wrong), f"{len(wrong):,} {among}{shown}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def final_checks(table: memwal.Table, truth: Truth) -> Iterator[Check]:
    """Hold a table, of which everything is merged, against what was acknowledged."""
    acked, attempt = (states.astype(np.int64) for states in (truth.acked, truth.attempt))
    found = np.full(len(acked), ABSENT)
    broken: list[int] = []
    twice = 0
    for batch in table.scan().to_batches():
        rows = pa.Table.from_batches([batch])
        keys = rows["id"].to_numpy()
        twice += int((found[keys] != ABSENT).sum()) + len(keys) - len(np.unique(keys))
        found[keys] = rows["count"].to_numpy()
        broken += torn(rows).tolist()
    wrong = differing_keys(found, acked, attempt)
    yield Check.none_of(
        "every acknowledged write is in the table",
        [f"key {key} has count {found[key]}, acknowledged was state {acked[key]}" for key in wrong],
        f"of {len(acked):,} keys differ",
    )
    yield Check.none_of("every row is whole", broken, f"of {int((found != ABSENT).sum()):,} torn")
    yield Check("every key is there once", not twice, f"{twice:,} twice")
    dataset = lance.dataset(table.uri)
    theirs = np.full(len(acked), ABSENT)
    rows = dataset.to_table(columns=["id", "count"])
    theirs[rows["id"].to_numpy()] = rows["count"].to_numpy()
    same = len(rows) == dataset.count_rows() == int((found != ABSENT).sum())
    yield Check(
        "Lance's own reader finds the same",
        same and bool((theirs == found).all()),
        f"{dataset.count_rows():,} rows",
    )
    findings = table.verify().findings
    bad = [found.text for found in findings if found.severity is not FindingSeverity.INFORMATION]
    yield Check.none_of("verify finds the table clean", bad, "errors and warnings")


def differing_keys(found: Counts, acked: Counts, attempt: Counts) -> Counts:
    """Keys that are not as acknowledged, nor as a write left them that nobody settled."""

    def is_it(states: Counts) -> np.ndarray:
        return np.where(states % 2 == 1, found == ABSENT, found == states // 2)

    return np.flatnonzero(~(is_it(acked) | is_it(attempt)))
