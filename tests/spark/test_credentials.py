"""Merges on Spark whose tasks fetch credentials where they run, and outlive them there."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.data.tables import rows, state
from support.stores.s3_emulator import REGION, running_emulator
from support.stores.store_gateway import Answer, Forward, Gateway, Request, Sessions, gateway_before

import memwal
from memwal.jobs.job import TaskRunner

_LIFE = 4.0


@pytest.fixture
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, str]]:
    """A gateway before an emulator, and a bucket."""
    with (
        running_emulator(tmp_path_factory.mktemp("s3")) as emulator,
        gateway_before(emulator.endpoint) as gateway,
    ):
        yield gateway, emulator.create_bucket()


@pytest.mark.slow
def test_tasks_outlive_their_credentials(
    behind: tuple[Gateway, str], tmp_path: Path, run: TaskRunner
) -> None:
    gateway, bucket = behind
    sessions = Sessions()
    gateway.rule = sessions.rule
    file = tmp_path / "keys.json"
    with sessions.kept_in(file, _LIFE):
        table = memwal.create(
            f"s3://{bucket}/t",
            rows({}).schema,
            primary_key=["id"],
            region_spec="bucket:id:4",
            maintained_indexes=["id_idx"],
            storage_options={
                "aws_endpoint": gateway.endpoint,
                "allow_http": "true",
                "aws_region": REGION,
                "memwal_credentials_from": f"file:{file}",
            },
        )
        with table.writer() as writer:
            for n in range(2):
                writer.upsert(rows(dict.fromkeys(range(40), n)))
                writer.flush()

        def slow(request: Request, forward: Forward) -> Answer | None:
            time.sleep(0.25)
            return sessions.rule(request, forward)

        gateway.rule = slow
        begun = time.monotonic()
        assert table.merge(max_tasks=2, run=run).warnings == ()
        assert time.monotonic() - begun > _LIFE, "too short to show anything"
        assert table.build_indexes(run=run).warnings == ()
        gateway.rule = sessions.rule
        assert state(table.base().dataset.to_table()) == dict.fromkeys(range(40), 1)
    assert sessions.refused == []
