"""What each type of connection stands for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection
from memwal_airflow.hooks.connection import storage_options

from memwal.errors import InvalidInputError, StoreAccessError

SECRET = "marker-5d1c"
KEYS = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": SECRET}


def options_of(conn_type: str, *, extra: Any = None, **fields: Any) -> dict[str, str]:
    return storage_options(
        Connection(
            conn_id="lake",
            conn_type=conn_type,
            extra=None if extra is None else json.dumps(extra),
            **fields,
        )
    )


@pytest.mark.parametrize("conn_type", ["generic", "s3", "http"])
def test_any_other_type_holds_the_options_themselves(conn_type: str) -> None:
    extra = {**KEYS, "allow_http": True, "timeout": 3}
    found = options_of(conn_type, extra=extra)
    assert found == {**KEYS, "allow_http": "true", "timeout": "3"}
    with pytest.raises(InvalidInputError, match="'lake'"):
        options_of(conn_type, extra={"a": {"b": SECRET}})


def test_the_fields_of_the_form_are_options_by_their_names() -> None:
    extra = {
        **KEYS,
        "aws_session_token": None,
        "aws_region": "",
        "aws_endpoint": "http://127.0.0.1:9000",
        "test_uri": "s3://lake",
        "secret_options": json.dumps({"timeout": "60s", "aws_region": "eu-west-1"}),
        "client_max_retries": 5,
    }
    assert options_of("memwal", extra=extra) == {
        **KEYS,
        "aws_endpoint": "http://127.0.0.1:9000",
        "allow_http": "true",
        "timeout": "60s",
        "aws_region": "eu-west-1",
        "client_max_retries": "5",
    }
    assert options_of("memwal") == {}
    https = {"aws_endpoint": "https://minio"}
    assert options_of("memwal", extra=https) == https


@pytest.mark.parametrize("text", ["{" + SECRET, f'["{SECRET}"]', json.dumps({"a": {"b": SECRET}})])
def test_options_that_are_none_are_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidInputError, match="secret_options") as caught:
        options_of("memwal", extra={"secret_options": text})
    assert SECRET not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_a_connection_of_aws() -> None:
    found = options_of(
        "aws",
        login="AKIDEXAMPLE",
        password=SECRET,
        extra={"region_name": "eu-west-1", "config_kwargs": {"retries": 3}, "verify": False},
    )
    assert found == {**KEYS, "aws_region": "eu-west-1"}
    # Options that stood in its extra go on to work.
    assert options_of("aws", extra={**KEYS, "aws_region": "x"}) == {**KEYS, "aws_region": "x"}
    service = {"service_config": {"s3": {"endpoint_url": "http://h:1"}}}
    assert options_of("aws", extra=service) == {"aws_endpoint": "http://h:1", "allow_http": "true"}
    with pytest.raises(InvalidInputError, match="SAML"):
        options_of("aws", extra={"role_arn": "r", "assume_role_method": "assume_role_with_saml"})


def test_a_connection_of_google() -> None:
    key = {"type": "service_account", "private_key": SECRET}
    for given in (key, json.dumps(key)):
        found = options_of("google_cloud_platform", extra={"keyfile_dict": given, "project": "p"})
        assert found.keys() == {"google_service_account_key"}
        assert json.loads(found["google_service_account_key"]) == key
    old = {"extra__google_cloud_platform__key_path": "/keys/lake.json", "num_retries": 5}
    assert options_of("google_cloud_platform", extra=old) == {
        "google_service_account": "/keys/lake.json"
    }
    assert options_of("google_cloud_platform", extra={"is_anonymous": True}) == {
        "google_skip_signature": "true"
    }
    with pytest.raises(InvalidInputError, match="impersonation_chain"):
        options_of("google_cloud_platform", extra={"impersonation_chain": "a@b"})


def test_a_connection_of_azure() -> None:
    assert options_of("wasb", login="account", password=SECRET) == {
        "azure_storage_account_name": "account",
        "azure_storage_access_key": SECRET,
    }
    assert options_of("wasb", login="account", extra={"sas_token": f"?sv=1&sig={SECRET}"}) == {
        "azure_storage_account_name": "account",
        "azure_storage_sas_token": f"sv=1&sig={SECRET}",
    }
    principal = options_of(
        "wasb",
        host="https://account.blob.core.windows.net/",
        login="client",
        password=SECRET,
        extra={"tenant_id": "tenant"},
    )
    assert principal == {
        "azure_storage_account_name": "account",
        "azure_storage_tenant_id": "tenant",
        "azure_storage_client_id": "client",
        "azure_storage_client_secret": SECRET,
    }
    text = f"DefaultEndpointsProtocol=https;AccountName=account;AccountKey={SECRET}==;"
    assert options_of("wasb", extra={"connection_string": text}) == {
        "azure_storage_account_name": "account",
        "azure_storage_access_key": f"{SECRET}==",
    }


@pytest.fixture
def token_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Run a stand-in for AWS's token service, and leave the caller's own AWS out of it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    profiles = tmp_path / "credentials"
    profiles.write_text(
        f"[lake]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profiles))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    yield f"http://{host}:{port}"
    server.stop()


ROLE = "arn:aws:iam::123456789012:role/lake"


def test_a_role_is_taken_anew_each_time(token_service: str, tmp_path: Path) -> None:
    extra = {**KEYS, "aws_region": "eu-west-1", "aws_role_arn": ROLE}
    found, again = (options_of("memwal", extra=extra) for _ in range(2))
    assert found["aws_session_token"]
    assert found["aws_secret_access_key"] not in (SECRET, again["aws_secret_access_key"])
    assert found["aws_region"] == "eu-west-1"
    assert not any("role" in name for name in found)
    provider = options_of("aws", login="AKIDEXAMPLE", password=SECRET, extra={"role_arn": ROLE})
    assert provider.keys() == {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}
    token = tmp_path / "token"
    token.write_text("a.web.identity\n")
    web = {"aws_role_arn": ROLE, "aws_web_identity_token_file": str(token)}
    assert options_of("memwal", extra=web)["aws_session_token"]


def test_a_profile_is_looked_up(token_service: str) -> None:
    assert options_of("memwal", extra={"aws_profile": "lake"}) == {
        "aws_access_key_id": "AKIDPROFILE",
        "aws_secret_access_key": SECRET,
    }


@pytest.mark.parametrize(
    "extra",
    [
        {"aws_profile": "nobody"},
        {"aws_role_arn": ROLE},
        {"aws_role_arn": ROLE, "aws_web_identity_token_file": "/none"},
        {"aws_role_arn": "no-role", **KEYS},
    ],
)
def test_credentials_that_cannot_be_had(token_service: str, extra: dict[str, str]) -> None:
    with pytest.raises(StoreAccessError, match="'lake'") as caught:
        options_of("memwal", extra=extra)
    assert SECRET not in str(caught.value)
    with pytest.raises(InvalidInputError):
        options_of("memwal", extra={"aws_web_identity_token_file": "/token"})
