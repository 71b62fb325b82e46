"""Files that describe tables, and the options of a load."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hostile.harness import Area, safely
from hostile.policies import POLICY
from hostile.values import NUMBERS, mutated, one_of_these, texts, trees
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from memwal.catalog.records import SNAPSHOT_FORMAT, ManagedTable, Policy, read_snapshot
from memwal.cli import options
from memwal.cli.options import schema_from
from memwal.quality import quarantine
from memwal.quality.quarantine import RowOrigin
from memwal.spark.source import scan_plan
from memwal.spark.source.scan_plan import parse_options

_AT = datetime(2026, 3, 1, tzinfo=UTC).isoformat()
RECORD = {
    "name": "t",
    "uri": "/t.lance",
    "storage_options_ref": None,
    "policy": {key: POLICY[key] for key in ("merge_at_generations", "tags", "schedule")},
    "owner": "o",
    "enabled": True,
    "mem_wal": True,
    "created_at": _AT,
    "updated_at": _AT,
    "regions": 2,
}
SNAPSHOT = {"format": SNAPSHOT_FORMAT, "tables": [RECORD]}
SCHEMA = {
    "fields": [
        {"name": "id", "type": {"type": "int64"}, "nullable": False},
        {
            "name": "v",
            "type": {
                "type": "fixed_size_list",
                "length": 2,
                "fields": [{"name": "item", "type": {"type": "float"}, "nullable": True}],
            },
            "nullable": True,
        },
    ],
    "metadata": {},
}


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    yield folder


def _documents(document: Any) -> SearchStrategy[str]:
    return (
        mutated(document).map(json.dumps)
        | trees().map(json.dumps)
        | texts()
        | st.integers(1, 6_000).map(lambda depth: "[" * depth)
    )


def _snapshot(folder: Path, content: str) -> None:
    file = folder / "snapshot.json"
    file.write_bytes(content.encode(errors="surrogatepass"))
    safely(lambda: read_snapshot(file))


def _record(_: Any, values: Any) -> None:
    made = safely(lambda: ManagedTable.from_dict(values))
    if isinstance(made, ManagedTable):
        json.dumps(made.to_dict())


def _schema(folder: Path, content: str) -> None:
    file = folder / "schema.json"
    file.write_bytes(content.encode(errors="surrogatepass"))
    safely(lambda: schema_from(file, None))


_OPTIONS = (
    *("path", "columns", "filter", "version", "tag", "regions", "partitions", "protect_seconds"),
    *("target_partition_bytes", "omit_unsupported", "truncate_nanoseconds", "storage_options_file"),
)


def _load(_: Any, options: dict[str, str]) -> None:
    safely(lambda: parse_options(options))


def _origin(_: Any, text: str) -> None:
    safely(lambda: str(RowOrigin.parse(text)))


AREAS = (
    Area(
        "snapshots of a catalog",
        _documents(SNAPSHOT),
        _snapshot,
        (ManagedTable, "from_dict"),
        _folder,
    ),
    Area("records", mutated(RECORD) | trees(), _record, (Policy, "from_dict")),
    Area(
        "files with schemas",
        _documents(SCHEMA),
        _schema,
        (options, "_json_schema"),
        _folder,
    ),
    Area(
        "options of a Spark load",
        st.dictionaries(
            st.sampled_from(_OPTIONS),
            texts("true", '["a"]', "[" * 3_000, "{}", "[1]") | one_of_these(*NUMBERS).map(str),
            max_size=4,
        ),
        _load,
        (scan_plan, "InvalidInputError"),
    ),
    Area(
        "origins of rows",
        texts("00000000-0000-8000-8000-000000000001/", "0123abcd_gen_1/", "1")
        | st.builds(
            "00000000-0000-8000-8000-000000000001/{}_gen_{}/{}".format,
            st.sampled_from(("0123abcd", "x", "")),
            one_of_these(*NUMBERS),
            one_of_these(*NUMBERS),
        ),
        _origin,
        (quarantine, "parse_generation_name"),
    ),
)
