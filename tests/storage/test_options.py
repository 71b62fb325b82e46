from datetime import timedelta

import pytest

from memwal.errors import InvalidInputError
from memwal.storage.options import cloud_settings


def test_options_of_lance_are_sorted() -> None:
    settings = cloud_settings(
        "s3",
        {
            "AWS_Region": "eu-west-1",
            "aws_endpoint_url": "http://x",
            "aws_virtual_hosted_style_request": "false",
            "aws_access_key_id": "k",
            "allow_http": "TRUE",
            "timeout": "30s",
            "connect_timeout": "1s",
            "user_agent": "me",
            "headers.x-team": "flights",
            "client_max_retries": "7",
            "client_retry_timeout": "20",
            "download_retry_count": "4",
            "new_table_data_storage_version": "2.1",
            "expires_at_millis": "1",
            "bucket": "another",
        },
        {},
    )

    assert settings.config == {
        "aws_region": "eu-west-1",
        "aws_endpoint_url": "http://x",
        "aws_virtual_hosted_style_request": "false",
        "aws_access_key_id": "k",
    }
    assert settings.client == {
        "timeout": "30s",
        "connect_timeout": "1s",
        "user_agent": "me",
        "allow_http": "true",
        "default_headers": {"x-team": "flights"},
    }
    assert settings.max_retries == 7
    assert settings.retry_timeout == timedelta(seconds=20)
    assert "eu-west-1" not in repr(settings)


@pytest.mark.parametrize(
    ("options", "environment", "allowed"),
    [
        ({}, {}, False),
        ({"allow_http": "false"}, {}, False),
        ({"aws_allow_http": "1"}, {}, True),
        ({"azure_allow_http": "yes"}, {}, True),
        ({}, {"AWS_ALLOW_HTTP": "true"}, True),
        ({"allow_http": "false"}, {"AZURE_STORAGE_USE_HTTP": "true"}, True),
        ({}, {"AZURE_STORAGE_ALLOW_HTTP": "0"}, False),
    ],
)
def test_plain_http_is_allowed_as_lance_allows_it(
    options: dict[str, str], environment: dict[str, str], allowed: bool
) -> None:
    assert ("allow_http" in cloud_settings("s3", options, environment).client) is allowed


def test_variables_of_lance_win() -> None:
    settings = cloud_settings(
        "gs",
        {"client_max_retries": "7"},
        {"OBJECT_STORE_CLIENT_MAX_RETRIES": "2", "OBJECT_STORE_CLIENT_RETRY_TIMEOUT": "9"},
    )

    assert (settings.max_retries, settings.retry_timeout) == (2, timedelta(seconds=9))


def test_each_store_has_its_own_options() -> None:
    options = {"aws_region": "r", "azure_storage_account_name": "a", "google_storage_token": "t"}

    assert cloud_settings("s3", options, {}).config == {"aws_region": "r"}
    assert cloud_settings("az", options, {}).config == {"azure_storage_account_name": "a"}
    assert cloud_settings("abfss", options, {}).config == {"azure_storage_account_name": "a"}
    assert cloud_settings("gs", options, {}).config == {"bearer_token": "t"}


def test_options_that_nobody_knows_are_named_without_their_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    others = {"azure_storage_account_name": "a", "google_storage_token": "t", "aws_profile": "p"}
    known = {"aws_region": "r", "memwal_commits_in": "URL", "s3_express": "false", **others}

    cloud_settings("s3", known, {})
    assert caplog.records == []

    cloud_settings("s3", {**known, "AWS_Secret_Acess_Key": "hidden"}, {})
    (record,) = caplog.records
    assert "'aws_secret_acess_key'" in record.getMessage()
    assert "hidden" not in record.getMessage()


@pytest.mark.parametrize("value", ["three", "-1", "1.5", ""])
def test_numbers_must_be_numbers(value: str) -> None:
    with pytest.raises(InvalidInputError, match="client_max_retries"):
        cloud_settings("s3", {"client_max_retries": value}, {})
