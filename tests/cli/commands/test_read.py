"""``memwal read``."""

import pytest
from support.data.tables import keys, rows


@pytest.fixture
def written(table):
    """A table with three merged rows, and a writer that lives and has unflushed rows."""
    table.upsert(rows({1: 1, 2: 2, 3: 3}))
    table.merge()
    with table.writer() as writer:
        writer.upsert(rows({4: 4}))
        writer.delete(keys(1))
        yield table, writer


def shown(answer):
    return {row["id"]: row["n"] for row in answer.json}


def test_rows_that_are_flushed(cli, written):
    table, _ = written
    assert shown(cli("read", table.uri, "--json")) == {1: 1, 2: 2, 3: 3}


def test_what_writers_acknowledged(cli, written):
    table, _ = written
    assert shown(cli("read", table.uri, "--fresh", "--json")) == {2: 2, 3: 3, 4: 4}


def test_up_to_a_position(cli, written):
    table, writer = written
    position = str(writer.upsert(rows({5: 5})).position)
    assert 5 in shown(cli("read", table.uri, "--at-least", position, "--json"))


def test_a_version_of_the_base_table(cli, written):
    table, _ = written
    assert shown(cli("read", table.uri, "--version", 1, "--json")) == {}


def test_columns_a_filter_and_a_limit(cli, written):
    table, _ = written
    found = cli("read", table.uri, "--column", "id", "--filter", "n > 1", "--json").json
    assert sorted(row["id"] for row in found) == [2, 3]
    assert {name for row in found for name in row} == {"id"}
    assert len(cli("read", table.uri, "--limit", 2, "--json").json) == 2


def test_text(cli, written):
    table, _ = written
    text = cli("read", table.uri, "--filter", "id = 2").stdout
    assert "id" in text
    assert "2" in text
    assert "--limit" in cli("read", table.uri, "--limit", 1).stdout
    assert cli("read", table.uri, "--filter", "id = 99").stdout


@pytest.mark.parametrize(
    "options",
    [
        ("--fresh", "--version", "1"),
        ("--at-least", "x"),
        ("--column", "nothing"),
        ("--filter", "nothing = 1"),
    ],
)
def test_wrong_input(cli, written, options):
    table, _ = written
    assert cli("read", table.uri, *options).code == 2


def test_a_wrong_filter_is_told_with_the_columns(cli, written):
    table, _ = written
    told = cli("read", table.uri, "--filter", "nothing = 1").stderr
    assert "nothing = 1" in told
    assert all(name in told for name in table.schema.names)
    assert ".rs" not in told
    assert len(told.splitlines()) == 1
