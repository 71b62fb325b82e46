from pathlib import Path

import lance
import pyarrow as pa
import pytest
from support.stores.s3_emulator import S3Emulator

from memwal.errors import InvalidInputError, StoreUnavailableError
from memwal.storage.cloud import CloudStore
from memwal.storage.local import LocalStore
from memwal.storage.location import TableLocation
from memwal.storage.object_store import ObjectStore
from memwal.storage.open import open_store

# Azure wants base64.
AZURE_KEY = "c2VjcmV0IGtleSBvZiB0aGUgYWNjb3VudA=="


def keys_of(store: ObjectStore) -> list[str]:
    return sorted(info.key for info in store.list(""))


def test_each_scheme_has_its_store(tmp_path: Path) -> None:
    assert isinstance(open_store(tmp_path / "t"), LocalStore)
    assert isinstance(open_store(f"file://{tmp_path}/t"), LocalStore)
    for uri, options in (
        ("s3://bucket/t", {}),
        ("gs://bucket/t", {"google_storage_token": "t"}),
        ("az://container/t", {"account_name": "a", "account_key": AZURE_KEY}),
        ("abfss://container@account.dfs.core.windows.net/t", {"account_key": AZURE_KEY}),
        ("memory://name/t", {}),
        ("s3://bucket--use1-az4--x-s3/t", {"aws_region": "us-east-1"}),
    ):
        store = open_store(uri, options)
        assert isinstance(store, CloudStore)
        assert not store.is_local
        assert store.uri == uri


def test_local_stores_say_so(tmp_path: Path) -> None:
    store = open_store(tmp_path / "t")

    assert store.is_local
    assert store.uri == str(tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_an_unknown_scheme_names_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"s3://.*gs://.*az://.*memory://"):
        open_store("hdfs://name/t")


def test_a_memory_store_is_one_per_name() -> None:
    open_store("memory://shared-name/t").create("a/1", b"x")

    assert open_store("memory://shared-name/t/").get("a/1") == b"x"
    assert open_store("memory://shared-name").list_folders("") == ["t"]
    assert keys_of(open_store("memory://shared-name/u")) == []
    assert keys_of(open_store("memory://another-name/t")) == []


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("s3://bucket/t", {"aws_access_key_id": "only-half"}),
        ("s3://bucket/t", {"aws_unsigned_payload": "perhaps"}),
        ("s3://bucket/t", {"timeout": "a while"}),
        ("s3://bucket/t", {"region": "a", "aws_region": "b"}),
        ("az://container/t", {}),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(
    uri: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_NAME"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(InvalidInputError):
        open_store(uri, options)


def test_credentials_come_from_the_environment(
    emulator: S3Emulator, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreUnavailableError):
        open_store(
            f"s3://{bucket}/env",
            emulator.storage_options
            | {"aws_endpoint": "http://127.0.0.1:1", "client_max_retries": "0"},
        ).get("a")

    for name, value in emulator.storage_options.items():
        monkeypatch.setenv(name.upper() if name.startswith("aws") else "AWS_ALLOW_HTTP", value)
    store = open_store(f"s3://{bucket}/env")
    store.create("a", b"x")

    assert open_store(f"s3://{bucket}/env", emulator.storage_options).get("a") == b"x"


@pytest.mark.parametrize("path", ["plain/t.lance", "my dir/t é.lance", "my%20dir/t+1.lance"])
def test_lance_and_the_store_mean_the_same_table(
    emulator: S3Emulator, bucket: str, path: str
) -> None:
    uri = f"s3://{bucket}/{path}"
    lance.write_dataset(pa.table({"a": [1, 2]}), uri, storage_options=emulator.storage_options)

    location = TableLocation(uri, emulator.storage_options)

    assert location.store.list_folders("") == ["_transactions", "_versions", "data"]
    assert lance.dataset(location.uri, storage_options=location.storage_options).count_rows() == 2
    child = location.child("_mem_wal/gen_1")
    lance.write_dataset(pa.table({"a": [3]}), child, storage_options=emulator.storage_options)
    assert location.store.list_folders("_mem_wal") == ["gen_1"]
    location.store.delete_folder("_mem_wal")
    assert "_mem_wal" not in location.store.list_folders("")


@pytest.mark.parametrize("name", ["t.lance", "my dir/t é.lance", "t%20x.lance"])
def test_lance_and_the_local_store_mean_the_same_table(tmp_path: Path, name: str) -> None:
    location = TableLocation(f"{tmp_path}/{name}")
    lance.write_dataset(pa.table({"a": [1, 2]}), location.uri)

    assert location.store.list_folders("") == ["_transactions", "_versions", "data"]
    assert [info.size for info in location.store.list("data")] == [
        path.stat().st_size for path in (tmp_path / name / "data").iterdir()
    ]
    location.store.sync("")
    location.store.barrier()
