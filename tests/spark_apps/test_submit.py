"""The applications as users start them: by spark-submit, with a driver and workers of their own."""

import json
import signal

import psutil
import pytest
from support.data.tables import SCHEMA, base_state, keys, numbered, rows, state
from support.stores.s3_emulator import SECRET_KEY, running_emulator
from support.waiting import until

import memwal


@pytest.mark.slow
def test_a_merge_that_is_killed_and_run_again(submit, make_backlog, tmp_path):
    table, expected = make_backlog(25)
    start = table.base().version
    # Each generation goes into a commit of its own, so that there is a middle to be killed in.
    first = submit("merge", "--table", table.uri, "--commit-bytes", 1)
    until(lambda: table.base().version >= start + 3 or not first.running)
    family = first.family()
    first.kill()
    code, _, err = first.wait()
    assert code == -signal.SIGKILL, err
    # Workers notice that they are alone, and may finish what they are at.
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    left = table.status().backlog_generations
    assert 0 < left < 100
    assert state(table) == expected

    file = tmp_path / "result.json"
    second = submit("merge", "--table", table.uri, "--result", file)
    found = second.result()
    assert json.loads(file.read_text()) == found
    assert found["job"] == "merge"
    assert found["metrics"]["generations"] == left
    assert found["warnings"] == []
    assert base_state(table) == expected
    assert table.base().dataset.count_rows() == len(expected)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_merge_that_is_told_to_end(submit, make_backlog, number):
    table, expected = make_backlog(25)
    start = table.base().version
    submitted = submit("merge", "--table", table.uri, "--commit-bytes", 1)
    until(lambda: table.base().version >= start + 3 or not submitted.running)
    family = submitted.family()
    submitted.driver().send_signal(number)
    code, out, err = submitted.wait()
    assert code == 128 + number, f"{out}\n{err}"
    assert "error: " in out
    assert number.name in out
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    assert table.status().backlog_generations > 0
    table.merge()
    assert base_state(table) == expected


@pytest.mark.slow
def test_the_other_applications(submit, make_backlog):
    table, expected = make_backlog(2)
    table.merge()
    assert submit("index", "--table", table.uri).result()["commits"] == 1
    assert submit("snapshot", "--table", table.uri).result()["metrics"]["regions"] == 4
    collected = submit(
        *("gc", "--table", table.uri, "--no-dry-run"),
        *("--grace-seconds", 0, "--retention-seconds", 0),
    ).result()
    assert collected["metrics"]["generations_dropped"] == 8
    # An index that covers some fragments only would keep them apart.
    for start in (1_000, 2_000):
        table.upsert(numbered(start, 20))
        table.merge()
    compacted = submit("compact", "--table", table.uri, "--min-fragments", 2).result()
    assert compacted["metrics"]["fragments_added"] == 1
    added = [*range(1_000, 1_020), *range(2_000, 2_020)]
    assert state(table) == {**expected, **dict.fromkeys(added, 0)}
    verified = submit("verify", "--table", table.uri).result()
    assert [one for one in verified["findings"] if one["severity"] == "error"] == []


@pytest.mark.slow
def test_failures_reach_the_shell(submit, tmp_path):
    code, out, _ = submit("merge", "--table", tmp_path / "none.lance").wait()
    assert code == 2
    assert out.count("\n") == 1
    assert out.startswith("error: ")
    code, out, _ = submit("merge").wait()
    assert code == 2
    assert "--table" in out


@pytest.mark.slow
def test_secrets_of_an_object_store_stay_in_their_file(submit, tmp_path):
    events = tmp_path / "events"
    events.mkdir()
    scratch = tmp_path / "s3"
    scratch.mkdir()
    with running_emulator(scratch) as emulator:
        uri = f"s3://{emulator.create_bucket()}/t.lance"
        table = memwal.create(
            uri,
            SCHEMA,
            primary_key=["id"],
            region_spec=memwal.RegionSpec.bucket("id", 2),
            storage_options=emulator.storage_options,
        )
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2, 3: 3}))
            writer.delete(keys(3))
        options = tmp_path / "options.json"
        options.write_text(json.dumps(emulator.storage_options))
        submitted = submit(
            *("merge", "--table", uri, "--storage-options-file", options),
            conf={
                "spark.eventLog.enabled": "true",
                "spark.eventLog.dir": events.as_uri(),
                "spark.eventLog.compress": "false",
            },
        )
        code, out, err = submitted.wait()
        assert code == 0, f"{out}\n{err}"
        assert base_state(table) == {1: 1, 2: 2}
    log = "".join(file.read_text() for file in events.rglob("events*") if file.is_file())
    assert uri in log
    assert SECRET_KEY not in log + out + err
