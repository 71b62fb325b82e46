import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from memwal.catalog import ManagedTable, Policy
from memwal.catalog.records import (
    check_name,
    check_storage_options_ref,
    check_uri,
    snapshot_lock,
)
from memwal.errors import InvalidInputError, UnsupportedStoreError
from memwal.util import system


@pytest.mark.parametrize("name", ["a", "flights", "flights_2024-eu", "0", "a" * 63])
def test_names_that_are_taken(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "A", "a b", "a/b", "_a", "-a", "a" * 64, "é", "a\n", "a.b"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError):
        check_name(name)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://key:hunter2@bucket/t.lance",
        "s3://key@bucket/t.lance",
        "az://c/t.lance?sig=hunter2",
        "",
        " ",
    ],
)
def test_a_uri_with_credentials_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_uri(uri)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "uri", ["s3://bucket/t.lance", "/data/t.lance", "/data/what?.lance", "./t"]
)
def test_uris_that_are_taken(uri: str) -> None:
    assert check_uri(uri) == uri


@pytest.mark.parametrize("ref", [None, "/etc/memwal/s3.json", "airflow:lake_s3"])
def test_references_that_are_taken(ref: str | None) -> None:
    assert check_storage_options_ref(ref) == ref


@pytest.mark.parametrize(
    "ref", ['{"aws_secret_access_key": "hunter2"}', "hunter2", "s3.json", "airflow:", "airflow:a b"]
)
def test_what_may_be_a_secret_is_no_reference_and_not_repeated(ref: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_storage_options_ref(ref)
    assert "hunter2" not in str(caught.value)


NOW = datetime(2026, 11, 22, tzinfo=UTC)
TABLE = ManagedTable(
    name="flights",
    uri="s3://lake/flights.lance",
    storage_options_ref="airflow:lake",
    policy=Policy(tags=("air",), schedule=None),
    owner="data",
    enabled=False,
    created_at=NOW,
    updated_at=NOW,
)


DEFAULTED = {"mem_wal", "regions", "problem"}


def test_a_record_survives_json() -> None:
    assert ManagedTable.from_dict(json.loads(json.dumps(TABLE.to_dict()))) == TABLE


def test_a_record_of_the_version_before_takes_defaults() -> None:
    values = {key: value for key, value in TABLE.to_dict().items() if key not in DEFAULTED}
    assert ManagedTable.from_dict(values) == TABLE


@pytest.mark.parametrize("key", sorted(TABLE.to_dict().keys() - DEFAULTED))
def test_a_record_without_a_key_is_refused(key: str) -> None:
    values = {name: value for name, value in TABLE.to_dict().items() if name != key}
    with pytest.raises(InvalidInputError, match=f"'{key}'"):
        ManagedTable.from_dict(values)


def test_a_snapshot_of_the_catalog_needs_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "fcntl", None)

    with pytest.raises(UnsupportedStoreError), snapshot_lock(tmp_path / "tables.json"):
        pass
