"""Lance does not complain of the MemWAL index, unless the user wants to hear all that it has."""

from pathlib import Path

import pytest
from support.processes import python_environment, run_python

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
    environment = python_environment()
    environment.pop("LANCE_LOG", None)
    if chosen is not None:
        environment["LANCE_LOG"] = chosen

    made = run_python(LIFE, tmp_path / "table.lance", env=environment)

    assert ("lance::index" in made.stderr) is (chosen is not None)
