"""The connection type ``memwal`` and its form, which Airflow builds without importing the hook."""

from __future__ import annotations

from typing import Any, Final

# Airflow's masker decides by the names of fields: each secret field has "secret", "token",
# "access_key" or "service_account" in it, so that they are hidden in the API and in logs as well.
_SECRET = {"type": ["string", "null"], "format": "password"}
_TEXT = {"type": ["string", "null"]}
_SWITCH = {"type": ["boolean", "null"]}

_FIELDS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("aws_access_key_id", "S3: access key id", "", _SECRET),
    ("aws_secret_access_key", "S3: secret access key", "", _SECRET),
    ("aws_session_token", "S3: session token", "Of temporary keys.", _SECRET),
    ("aws_region", "S3: region", "Such as eu-central-1.", _TEXT),
    (
        "aws_endpoint",
        "S3: endpoint",
        "For servers that are not AWS, such as https://minio.example.com:9000.",
        _TEXT,
    ),
    (
        "aws_profile",
        "S3: profile",
        "Of ~/.aws on the machine where the task runs; needs boto3.",
        _TEXT,
    ),
    (
        "aws_role_arn",
        "S3: role",
        "Assumed with the keys, the profile or the web identity, anew for every job; needs boto3.",
        _TEXT,
    ),
    ("aws_role_external_id", "S3: external id of the role", "", _TEXT),
    (
        "aws_web_identity_token_file",
        "S3: file of a web identity token",
        "Read where the task runs; needs a role.",
        _TEXT,
    ),
    (
        "google_service_account",
        "GCS: file of a service account",
        "A path that exists where the task runs and on Spark's executors.",
        _TEXT,
    ),
    ("google_service_account_key", "GCS: service account as JSON", "", _SECRET),
    ("azure_storage_account_name", "Azure: storage account", "", _TEXT),
    ("azure_storage_access_key", "Azure: account key", "", _SECRET),
    ("azure_storage_sas_token", "Azure: shared access signature", "", _SECRET),
    ("azure_storage_tenant_id", "Azure: tenant id", "Of a service principal.", _TEXT),
    ("azure_storage_client_id", "Azure: client id", "", _TEXT),
    ("azure_storage_client_secret", "Azure: client secret", "", _SECRET),
    ("azure_endpoint", "Azure: endpoint", "", _TEXT),
    ("allow_http", "Allow plain http", "For endpoints without TLS.", _SWITCH),
    (
        "secret_options",
        "More storage options",
        'A JSON object such as {"timeout": "60s"}; it wins over the fields, and is hidden.',
        _SECRET,
    ),
    (
        "test_uri",
        "Address to test",
        "Such as s3://lake/tables. Testing the connection lists it, checks that it supports "
        "put-if-absent, and leaves nothing behind.",
        _TEXT,
    ),
)


CONNECTION_TYPE: Final[dict[str, Any]] = {
    "connection-type": "memwal",
    "hook-class-name": "memwal_airflow.hooks.memwal.MemWalHook",
    "hook-name": "MemWAL",
    "ui-field-behaviour": {
        "hidden-fields": ["host", "port", "schema", "login", "password", "extra"],
        "relabeling": {},
        "placeholders": {},
    },
    "conn-fields": {
        name: {
            "label": label,
            "schema": schema,
            **({"description": description} if description else {}),
        }
        for name, label, description, schema in _FIELDS
    },
}
