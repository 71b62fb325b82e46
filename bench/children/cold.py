"""A process of its own that does one thing and ends, as a command does.

Usage: ``python -m children.cold '{"do": "import", "side": "ours" or "lance", "uri": ...}'``. It
imports nothing that its side does not need.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping


def main() -> None:
    """Do what the argument says, and tell what it took."""
    task = json.loads(sys.argv[1])
    _ACTIONS[task["do"], task["side"]](task)
    print(json.dumps({"seconds": time.process_time(), "modules": len(sys.modules)}))


def _import_ours(task: Mapping[str, str]) -> None:
    import memwal

    memwal.open  # noqa: B018 - the package loads its names when they are used


def _import_lance(task: Mapping[str, str]) -> None:
    import lance  # noqa: F401


def _scan_ours(task: Mapping[str, str]) -> None:
    import memwal

    memwal.open(task["uri"]).scan().to_table()


def _scan_lance(task: Mapping[str, str]) -> None:
    import lance

    lance.dataset(task["uri"]).to_table()


def _write_ours(task: Mapping[str, str]) -> None:
    import memwal

    memwal.open(task["uri"]).upsert({"id": [1], "n": [1]})


def _write_lance(task: Mapping[str, str]) -> None:
    import lance
    import pyarrow as pa

    dataset = lance.dataset(task["uri"])
    row = pa.table({"id": [1], "n": [1]}, schema=dataset.schema)
    _upsert(dataset, row)


def _merge_ours(task: Mapping[str, str]) -> None:
    import memwal

    memwal.open(task["uri"]).merge()


def _merge_lance(task: Mapping[str, str]) -> None:
    import lance

    _upsert(lance.dataset(task["uri"]), lance.dataset(task["rows"]).to_table())


def _upsert(dataset: object, rows: object) -> None:
    merge = dataset.merge_insert("id")  # type: ignore[attr-defined]
    merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)


_ACTIONS: dict[tuple[str, str], Callable[[Mapping[str, str]], None]] = {
    ("import", "ours"): _import_ours,
    ("import", "lance"): _import_lance,
    ("scan", "ours"): _scan_ours,
    ("scan", "lance"): _scan_lance,
    ("write", "ours"): _write_ours,
    ("write", "lance"): _write_lance,
    ("merge", "ours"): _merge_ours,
    ("merge", "lance"): _merge_lance,
}

if __name__ == "__main__":
    main()
