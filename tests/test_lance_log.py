"""Lance does not complain of the MemWAL index, unless the user wants to hear all that it has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIFE = """
import sys
import memwal
import pyarrow as pa
schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
table = memwal.create(sys.argv[1], schema, primary_key=["id"], region_spec="unsharded")
for n in range(2):
    table.upsert({"id": [1, 2], "n": [n, n]})
    table.checkpoint()
"""


@pytest.mark.parametrize("chosen", [None, pytest.param("error", marks=pytest.mark.slow)])
def test_the_memwal_index_is_no_error(tmp_path: Path, chosen: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LANCE_LOG"}
    if chosen is not None:
        environment["LANCE_LOG"] = chosen

    made = subprocess.run(
        [sys.executable, "-c", LIFE, str(tmp_path / "table.lance")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ("lance::index" in made.stderr) is (chosen is not None)
