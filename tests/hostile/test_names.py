"""Names of columns in which anything may stand: refused at once, or good for everything."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

import memwal
from memwal.errors import InvalidInputError

NAMES = (
    *("a b", "a'b", "caf\u00e9", "select", "or", "a\nb", "a;b", "$x", "{{ 1 }}", "-x", "a--b"),
    *("a/*b", "a)b", "a,b", "A", "\x1b[31m", "\u202e", "a\\b", "a%sb", "a:b", "0", "a=b", " "),
)


def make(folder: Path, name: str, *, key: str | None = None) -> memwal.Table:
    """A table with a column of this name, which is its key by default."""
    fields = [pa.field(n, pa.string(), nullable=False) for n in {name, key or name}]
    return memwal.create(
        str(folder / "t.lance"),
        pa.schema([*fields, ("v", pa.int64())]),
        primary_key=[key or name],
        region_spec=memwal.RegionSpec.bucket(key or name, 2),
        maintained_indexes=[f"{name}_idx"],
    )


@pytest.mark.parametrize("name", ["a.b", "a`b", "a\0b", 'a"b', "_rowid", "_tombstone"])
def test_names_that_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(repr(name)[1:-1])):
        make(tmp_path, name)
    assert not (tmp_path / "t.lance" / "_versions").exists()


@pytest.mark.parametrize("name", ["a'b --"])
def test_a_life(tmp_path: Path, name: str) -> None:
    check_life(make(tmp_path, name), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_more_lives(tmp_path: Path, name: str) -> None:
    check_life(make(tmp_path, name), name)


@pytest.mark.slow
def test_a_quote_beside_the_key(tmp_path: Path) -> None:
    table = make(tmp_path, 'a"b', key="id")
    table.upsert(pa.table({"id": ["x"], 'a"b': ["y"], "v": [1]}))
    table.merge()
    table.build_indexes()
    assert table.scan(filter="`a\"b` = 'y'").to_table()["id"].to_pylist() == ["x"]


def check_life(table: memwal.Table, name: str) -> None:
    """Written, merged, indexed, replaced, deleted, found and checked."""
    with table.writer() as writer:
        writer.upsert(pa.table({name: ["a", "b", "c"], "v": [1, 2, 3]}))
        writer.flush()
        table.merge()
        table.build_indexes()
        writer.delete(pa.array(["a"]))
        writer.upsert(pa.table({name: ["b"], "v": [9]}))
        writer.flush()
    for _ in range(2):
        assert sorted(table.scan().to_table()["v"].to_pylist()) == [3, 9]
        assert table.lookup(pa.array(["b", "a"])).to_table()["v"].to_pylist() == [9]
        assert table.scan(filter=f"`{name}` = 'b'").to_table()["v"].to_pylist() == [9]
        table.merge()
    assert not [one for one in table.verify().findings if one.severity.value == "error"]
