"""Real object stores and exact emulators, for tests of a table's whole life on them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from support.data.tables import SCHEMA
from support.stores import azurite, fake_gcs, radosgw
from support.stores.s3_emulator import S3Emulator, running_emulator
from support.stores.store_gateway import Gateway, gateway_before

import memwal


@dataclass(frozen=True)
class Place:
    """A bucket for tests.

    Attributes
    ----------
    root : str
        Its address.
    options : dict
        The storage options that reach it.
    """

    root: str
    options: dict[str, str] = field(repr=False)

    def new_uri(self) -> str:
        """The address of a table that is not there yet."""
        return f"{self.root}/lake/{uuid4().hex[:8]}.lance"


def _ministack(folder: Path, running: ExitStack) -> Place:
    emulator = running.enter_context(running_emulator(folder))
    return Place(f"s3://{emulator.create_bucket()}", emulator.storage_options)


def _radosgw(folder: Path, running: ExitStack) -> Place:
    missing = radosgw.missing_programs()
    if missing:
        pytest.skip(f"Ceph is not installed ({', '.join(missing)}); see {radosgw.__name__}")
    gateway = running.enter_context(radosgw.running_radosgw(folder))
    return Place(f"s3://{gateway.create_bucket()}", gateway.storage_options)


def _azurite(folder: Path, running: ExitStack) -> Place:
    if not azurite.is_installed():
        pytest.skip(f"Azurite is not installed; see {azurite.__name__}")
    emulator = running.enter_context(azurite.running_azurite(folder))
    return Place(f"az://{emulator.create_container()}", emulator.storage_options)


def _fake_gcs(folder: Path, running: ExitStack) -> Place:
    if not fake_gcs.is_installed():
        pytest.skip(f"fake-gcs-server is not installed; see {fake_gcs.__name__}")
    emulator = running.enter_context(fake_gcs.running_fake_gcs(folder))
    return Place(f"gs://{emulator.create_bucket()}", emulator.storage_options)


PLACES: dict[str, Callable[[Path, ExitStack], Place]] = {
    "ministack": _ministack,
    "radosgw": _radosgw,
    "azurite": _azurite,
    "fake-gcs": _fake_gcs,
}


@pytest.fixture(scope="session", params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A bucket of each store; slow ones that are not installed are skipped by name."""
    with ExitStack() as running:
        yield PLACES[request.param](tmp_path_factory.mktemp(request.param), running)


@pytest.fixture
def gateway(emulator: S3Emulator) -> Iterator[Gateway]:
    """A gateway before the emulator."""
    with gateway_before(emulator.endpoint) as running:
        yield running


@pytest.fixture
def table(emulator: S3Emulator, gateway: Gateway) -> memwal.Table:
    """An empty table with one region, of which every request goes through the gateway."""
    options = {**emulator.storage_options, "aws_endpoint": gateway.endpoint}
    return memwal.create(
        f"s3://{emulator.create_bucket()}/lake/t.lance",
        SCHEMA,
        primary_key="id",
        storage_options={**options, "client_max_retries": "2"},
    )
