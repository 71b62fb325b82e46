"""When credentials are fetched, what happens when their source fails, and who is asked."""

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from memwal.base_table.snapshot import open_dataset
from memwal.errors import InvalidInputError, StoreAccessError
from memwal.storage.credentials import (
    Credentials,
    cached_credentials,
    credentials_for,
    describe_credentials,
    register_credentials,
)
from memwal.storage.location import TableLocation
from memwal.storage.open import open_store

KEYS = {"aws_access_key_id": "the-key", "aws_secret_access_key": "the-secret"}


@pytest.fixture(autouse=True)
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No profile or key of whoever runs the tests."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    cached_credentials.cache_clear()
    yield
    cached_credentials.cache_clear()


class Source:
    """A source with a clock."""

    def __init__(self, life: float | None = None) -> None:
        self.now = 1_000_000.0
        self.life = life
        self.asked = 0
        self.error: Exception | None = None

    def __call__(self) -> Mapping[str, str]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        given = {"access_key_id": f"key-{self.asked}", "secret_access_key": "the-secret"}
        if self.life is not None:
            given["expires_at_millis"] = str(int(1000 * (self.now + self.life)))
        return given

    def credentials(self) -> Credentials:
        return Credentials("vault", self, scheme="s3", clock=lambda: self.now)


def test_they_are_renewed_five_minutes_before_they_end() -> None:
    source = Source(life=3600)
    found = source.credentials()
    assert found.current().options == {
        "aws_access_key_id": "key-1",
        "aws_secret_access_key": "the-secret",
    }

    source.now += 3299
    assert found.current().options["aws_access_key_id"] == "key-1"
    source.now += 2
    assert found.current().options["aws_access_key_id"] == "key-2"
    assert source.asked == 2


def test_short_ones_are_renewed_at_half_their_life() -> None:
    source = Source(life=10)
    found = source.credentials()
    for wait, number in ((0, 1), (4.9, 1), (0.2, 2), (4.9, 2), (0.2, 3)):
        source.now += wait
        assert found.current().options["aws_access_key_id"] == f"key-{number}"


def test_without_an_end_they_are_asked_for_each_minute() -> None:
    source = Source()
    found = source.credentials()
    for wait, number in ((0, 1), (59, 1), (2, 2)):
        source.now += wait
        assert found.current().options["aws_access_key_id"] == f"key-{number}"


def test_lance_is_told_when_to_ask_again() -> None:
    source = Source(life=10)
    told = source.credentials().current().for_lance()

    assert told["expires_at_millis"] == str(int(1000 * (source.now + 10)))
    assert told["refresh_offset_millis"] == "5000"


def test_a_source_that_fails_is_forgiven_while_they_last(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(life=10)
    found = source.credentials()
    found.current()
    source.error = RuntimeError("token the-secret-token was refused")

    source.now += 6
    assert found.current().options["aws_access_key_id"] == "key-1"
    assert found.current().options["aws_access_key_id"] == "key-1"
    assert source.asked == 2, "not asked again at once"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    source.now += 6
    with pytest.raises(StoreAccessError, match="RuntimeError") as caught:
        found.current()
    assert "the-secret-token" not in caplog.text + str(caught.value)
    assert caught.value.__suppress_context__
    source.error = None
    assert found.current().options["aws_access_key_id"] == "key-4"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"google_storage_token": "t"},
        {**KEYS, "expires_at_millis": "soon"},
        {**KEYS, "expires_at_millis": "1"},
    ],
)
def test_what_a_source_must_not_return(given: Mapping[str, str]) -> None:
    found = Credentials("vault", lambda: given, scheme="s3")

    with pytest.raises(StoreAccessError):
        found.current()


def test_many_threads_ask_once() -> None:
    source = Source(life=3600)
    found = source.credentials()
    threads = [threading.Thread(target=found.current) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert source.asked == 1


def test_their_secrets_are_known_to_who_hides_them() -> None:
    found = Source(life=10).credentials()
    assert list(found) == []
    found.current()
    assert set(found) == {"key-1", "the-secret"}


def test_each_cloud_has_names_of_its_own() -> None:
    for scheme, name in (
        ("s3", "aws_session_token"),
        ("gs", "google_storage_token"),
        ("az", "azure_storage_token"),
        ("abfss", "azure_storage_token"),
    ):
        given = Credentials("s", lambda: {"TOKEN": "t"}, scheme=scheme).current()
        assert given.options == {name: "t"}


def test_a_name_that_is_registered() -> None:
    register_credentials("lake.vault-1", lambda: KEYS)
    found = credentials_for("s3", {"memwal_credentials_from": "lake.vault-1"})
    assert found is not None
    assert found.current().options == KEYS
    assert credentials_for("s3", {"memwal_credentials_from": "lake.vault-1"}) is found

    register_credentials("lake.vault-1", lambda: {**KEYS, "aws_session_token": "t"})
    again = credentials_for("s3", {"memwal_credentials_from": "lake.vault-1"})
    assert again is not None
    assert again.current().options["aws_session_token"] == "t"


@pytest.mark.parametrize("name", ["", "a b", "boto3", "file:/x", "a:b"])
def test_names_that_cannot_be_registered(name: str) -> None:
    with pytest.raises(InvalidInputError):
        register_credentials(name, lambda: KEYS)


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(InvalidInputError, match="nobody"):
        open_store("s3://bucket/t", {"memwal_credentials_from": "nobody"})


def test_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lake_vault.py").write_text(f"def fetch():\n    return {KEYS!r}\n")
    described = tmp_path / "lake_vault-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: lake-vault\nVersion: 1\n")
    (described / "entry_points.txt").write_text("[memwal.credentials]\nvault = lake_vault:fetch\n")
    monkeypatch.syspath_prepend(tmp_path)

    found = credentials_for("s3", {"memwal_credentials_from": "vault"})

    assert found is not None
    assert found.current().options == KEYS
    monkeypatch.delitem(sys.modules, "lake_vault")


def test_a_file_that_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    path.write_text(json.dumps(KEYS))
    found = credentials_for("s3", {"memwal_credentials_from": f"file:{path}"})
    assert found is not None
    assert found.current().options == KEYS

    absent = credentials_for("s3", {"memwal_credentials_from": f"file:{tmp_path}/absent.json"})
    assert absent is not None
    with pytest.raises(StoreAccessError):
        absent.current()


PROFILES = """\
[default]
aws_access_key_id = default-key
aws_secret_access_key = default-secret
[lake]
aws_access_key_id = lake-key
aws_secret_access_key = lake-secret
aws_session_token = lake-token
"""


@pytest.mark.parametrize(
    ("options", "environment", "key"),
    [
        ({"aws_profile": "lake"}, {}, "lake-key"),
        ({"memwal_credentials_from": "boto3:lake"}, {}, "lake-key"),
        ({"memwal_credentials_from": "boto3"}, {}, "default-key"),
        ({}, {"AWS_PROFILE": "lake"}, "lake-key"),
        ({}, {}, "default-key"),
        ({"aws_access_key_id": "given"}, {"AWS_PROFILE": "lake"}, None),
        ({"aws_skip_signature": "true"}, {}, None),
        ({}, {"AWS_ACCESS_KEY_ID": "given", "AWS_PROFILE": "lake"}, None),
        ({}, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}, None),
        ({}, {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://x"}, None),
    ],
)
def test_profiles_of_aws(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    environment: dict[str, str],
    key: str | None,
) -> None:
    file = tmp_path / "credentials"
    file.write_text(PROFILES)
    environment = {**environment, "AWS_SHARED_CREDENTIALS_FILE": str(file)}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    found = credentials_for("s3", options, environment)

    assert (found.current().options["aws_access_key_id"] if found else None) == key
    assert credentials_for("gs", {}, environment) is None


def test_nothing_is_looked_for_where_there_is_nothing() -> None:
    assert credentials_for("s3", {}, {}) is None
    with pytest.raises(InvalidInputError):
        credentials_for("file", {"memwal_credentials_from": "boto3"})


@pytest.mark.parametrize(
    ("scheme", "options", "environment", "said"),
    [
        ("file", {}, {}, "none"),
        ("s3", KEYS, {}, "aws_access_key_id, aws_secret_access_key"),
        ("s3", {"memwal_credentials_from": "boto3:lake"}, {}, "boto3:lake"),
        ("s3", {"aws_skip_signature": "true"}, {}, "skip_signature"),
        ("s3", {}, {"AWS_ACCESS_KEY_ID": "the-key"}, "AWS_ACCESS_KEY_ID"),
        ("s3", {}, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t", "AWS_ROLE_ARN": "r"}, "AWS_WEB_IDENTITY"),
        ("s3", {}, {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://x"}, "AWS_CONTAINER"),
        ("s3", {}, {}, "metadata"),
        ("gs", {"google_service_account": "/x"}, {}, "google_service_account"),
        ("az", {}, {"AZURE_FEDERATED_TOKEN_FILE": "/t"}, "AZURE_FEDERATED_TOKEN_FILE"),
    ],
)
def test_where_they_come_from_is_said_without_them(
    scheme: str, options: dict[str, str], environment: dict[str, str], said: str
) -> None:
    text = describe_credentials(scheme, options, environment)

    assert said in text
    assert "the-key" not in text
    assert "the-secret" not in text


def test_a_source_that_gives_nothing_is_told_by_reads_and_by_lance() -> None:
    def fetch() -> Mapping[str, str]:
        raise TimeoutError("no answer to token the-secret-token")

    register_credentials("the-vault", fetch)
    location = TableLocation(
        "s3://bucket/t",
        {"aws_endpoint": "http://127.0.0.1:1", "memwal_credentials_from": "the-vault"},
    )

    for call in (lambda: location.store.get("a"), lambda: open_dataset(location)):
        with pytest.raises(StoreAccessError, match="TimeoutError") as told:
            call()
        assert "the-secret-token" not in str(told.value)
    assert "the-vault" not in repr(location)


def test_options_of_ours_do_not_go_to_lance() -> None:
    register_credentials("the-vault", lambda: KEYS)
    options = {"aws_region": "r", "memwal_commits_in": "X", "memwal_credentials_from": "the-vault"}

    given = TableLocation("s3://bucket/t", options).lance_options()

    assert given is not None
    assert given.keys() == {
        "aws_region",
        "aws_access_key_id",
        "aws_secret_access_key",
        "expires_at_millis",
        "refresh_offset_millis",
    }
    fixed = {"aws_region": "r", **KEYS}
    assert TableLocation("s3://bucket/t", fixed).lance_arguments() == {"storage_options": fixed}
    assert TableLocation("/t").lance_arguments() == {"storage_options": None}
