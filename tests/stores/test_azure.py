"""Azure Blob Storage: tokens that end, and the spellings of addresses and options."""

import time
from collections.abc import Iterator

import lance
import pytest
from support.data.tables import keys, rows, state
from support.stores import azurite

import memwal
from memwal.errors import StoreAccessError, TableSetupError
from memwal.storage.location import TableLocation

pytestmark = pytest.mark.slow

_LIFE = 5


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[azurite.Azurite]:
    if not azurite.is_installed():
        pytest.skip(f"Azurite is not installed; see {azurite.__name__}")
    with azurite.running_azurite(tmp_path_factory.mktemp("azurite")) as running:
        yield running


def without_key(emulator: azurite.Azurite) -> dict[str, str]:
    options = emulator.storage_options
    del options["azure_storage_account_key"]
    return options


def test_signatures_that_end_are_renewed(emulator: azurite.Azurite) -> None:
    container = emulator.create_container()
    given: list[float] = []

    def fetch() -> dict[str, str]:
        given.append(time.time())
        end = int(time.time() + _LIFE)
        token = emulator.shared_access(container, _LIFE)
        return {"azure_storage_sas_token": token, "expires_at_millis": str(end * 1000)}

    memwal.register_credentials("signatures", fetch)
    options = {**without_key(emulator), "memwal_credentials_from": "signatures"}
    table = memwal.create(
        f"az://{container}/lake/t.lance",
        rows({}).schema,
        primary_key="id",
        maintained_indexes=["id_idx"],
        storage_options=options,
    )
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 2}))
        writer.flush()
        base = table.base().dataset
        time.sleep(_LIFE + 1)
        writer.delete(keys(2))
        assert base.count_rows() == 0
        assert state(writer.scan().to_table()) == {1: 1}
        writer.flush()
        time.sleep(_LIFE + 1)
    assert table.checkpoint().warnings == ()
    assert state(table.base().dataset.to_table()) == {1: 1}
    assert len(given) > 3


def test_a_signature_that_has_ended_is_told(emulator: azurite.Azurite) -> None:
    container = emulator.create_container()
    token = emulator.shared_access(container, -60)
    options = {**without_key(emulator), "azure_storage_sas_token": token}

    with pytest.raises(StoreAccessError) as caught:
        memwal.open(f"az://{container}/t", storage_options=options)

    assert token.partition("sig=")[2] not in str(caught.value)


@pytest.mark.parametrize(
    "names",
    [
        ("azure_storage_account_name", "azure_storage_account_key", "azure_storage_endpoint"),
        ("account_name", "account_key", "endpoint"),
        ("azure_storage_account_name", "access_key", "azure_endpoint"),
    ],
)
def test_lance_and_memwal_know_the_same_names(
    emulator: azurite.Azurite, names: tuple[str, str, str]
) -> None:
    account, key, endpoint, _ = emulator.storage_options.values()
    options = dict(zip(names, (account, key, endpoint), strict=True)) | {"allow_http": "true"}
    location = TableLocation(f"az://{emulator.create_container()}/t", options)

    lance.write_dataset(rows({1: 1}), location.uri, storage_options=options)

    assert location.store.list_folders("") == ["_transactions", "_versions", "data"]


def test_a_container_that_is_none(emulator: azurite.Azurite) -> None:
    with pytest.raises(TableSetupError):
        memwal.open("az://no-such-container/t", storage_options=emulator.storage_options)
