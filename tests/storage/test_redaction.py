from __future__ import annotations

from memwal.storage.redaction import redact, secret_values


def test_only_what_is_known_to_be_harmless_is_shown() -> None:
    shown = redact(
        {
            "aws_region": "eu-west-1",
            "AWS_ENDPOINT": "https://user:word@minio:9000/x",
            "allow_http": "true",
            "aws_secret_access_key": "secret-1",
            "aws_access_key_id": "secret-2",
            "azure_storage_sas_token": "secret-3",
            "google_service_account_key": "secret-4",
            "headers.authorization": "secret-5",
            "something_new": "secret-6",
        }
    )

    assert shown == {
        "aws_region": "eu-west-1",
        "AWS_ENDPOINT": "https://minio:9000/x",
        "allow_http": "true",
        "aws_secret_access_key": "***",
        "aws_access_key_id": "***",
        "azure_storage_sas_token": "***",
        "google_service_account_key": "***",
        "headers.authorization": "***",
        "something_new": "***",
    }


def test_secrets_are_collected_from_options_and_environment() -> None:
    values = secret_values(
        {"aws_secret_access_key": "longer-secret", "aws_region": "eu-west-1", "x": "short"},
        {"AWS_SESSION_TOKEN": "secret", "AWS_REGION": "eu-west-1", "HOME": "/home/somebody"},
    )

    assert values == ("longer-secret", "secret")
