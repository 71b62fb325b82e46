"""``memwal consumers``, and consumers in ``memwal status``."""

import pytest
from support.data.tables import flush_and_merge
from support.faults.collecting import DAY, collect

from memwal.errors import ConsumerFencedError
from memwal.jobs.status import TableStatus


@pytest.fixture
def consumer(table):
    """A consumer that has not read the newest rows."""
    flush_and_merge(table, {1: 1, 2: 2})
    found = table.consumer("embeddings")
    found.commit(found.read().token)
    flush_and_merge(table, {1: 3})
    table.compact(min_fragments=2)
    return found


def test_what_is_shown(cli, table, consumer):
    table.consumer("other")
    one, other = cli("consumers", "list", table.uri, "--json").json
    assert (one["name"], one["epoch"], one["expired"]) == ("embeddings", 1, None)
    assert 0 < one["version"] < table.version
    assert one["held_bytes"] > 0
    assert (other["name"], other["version"], other["held_bytes"]) == ("other", None, 0)
    shown = cli("consumers", "show", table.uri, "embeddings", "--json").json
    assert shown["token"] == consumer.token
    status = cli("status", table.uri, "--json").json
    assert [entry["name"] for entry in status["consumers"]] == ["embeddings", "other"]
    for command in (("consumers", "list"), ("consumers", "show"), ("status",)):
        name = ["embeddings"] if "show" in command else []
        assert "embeddings" in cli(*command, table.uri, *name).stdout


def test_an_expired_one_begins_again(cli, table, consumer):
    collect(table, 8 * DAY)
    status = table.status()
    assert status.expired_consumers == 1
    assert TableStatus.from_dict(status.to_dict()) == status
    later = status.aged(60).consumers[0].idle_seconds
    assert later == status.consumers[0].idle_seconds + 60
    assert "gc_consumer_seconds" in cli("consumers", "list", table.uri).stdout
    cli("consumers", "reset", table.uri, "embeddings", "--now")
    assert table.status().expired_consumers == 0
    with pytest.raises(ConsumerFencedError):
        consumer.read()
    assert table.consumer("embeddings").read().to_pylist() == []
    cli("consumers", "reset", table.uri, "embeddings")
    assert table.consumer("embeddings").read().count_rows() == 2


def test_one_that_is_dropped(cli, table, consumer):
    cli("consumers", "drop", table.uri, "embeddings")
    assert table.status().consumers == ()
    assert table.base().dataset.tags.list() == {}
    for command in ("show", "drop", "reset"):
        assert cli("consumers", command, table.uri, "embeddings").code == 2
