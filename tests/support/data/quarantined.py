"""Tables with rules of quality, and what a test wants to know of their quarantine."""

from typing import Any

import pyarrow as pa

import memwal
from memwal.quality.quarantine import Quarantine, origins_of
from memwal.quality.rules import QualityRules


def positive(**more: Any) -> dict[str, Any]:
    """The expectation that n is from 0 to 99."""
    return {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "n", "min_value": 0, "max_value": 99},
        **more,
    }


def rules(mode: str, *suite: dict[str, Any], **more: Any) -> QualityRules:
    """Rules with these expectations; that n is from 0 to 99 unless told otherwise."""
    return QualityRules.from_dict({"mode": mode, "suite": list(suite) or [positive()], **more})


def quarantine(table: memwal.Table) -> Quarantine:
    """The quarantine beside a table."""
    return Quarantine.of(table.location)


def waiting(table: memwal.Table) -> set[tuple[int, int, int | None]]:
    """Generation, key and number of the rows that wait in quarantine. None stands there twice."""
    found: pa.Table = quarantine(table).read()
    origins = origins_of(found)
    assert len(set(origins)) == len(origins)
    if not origins:
        return set()
    numbers = zip(found.column("id").to_pylist(), found.column("n").to_pylist(), strict=True)
    return {(o.generation, key, n) for o, (key, n) in zip(origins, numbers, strict=True)}
