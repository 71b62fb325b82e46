"""The obstore client of a bucket, and the memory stores of this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from obstore.store import MemoryStore, ObjectStore

from memwal.storage import uris
from memwal.storage.cloud_errors import ERRORS, bad_options
from memwal.storage.credentials import Credentials
from memwal.storage.options import CLOUDS, cloud_settings
from memwal.storage.redaction import secret_values
from memwal.storage.uris import TableUri

_EXPRESS_BUCKET = "--x-s3"

_memories: dict[str, MemoryStore] = {}
_memories_lock = threading.Lock()


def memory_backend(name: str) -> MemoryStore:
    """Return the memory store of this name; it lives as long as the process."""
    with _memories_lock:
        return _memories.setdefault(name, MemoryStore())


def cloud_backend(
    address: TableUri, options: Mapping[str, str], credentials: Credentials | None = None
) -> ObjectStore:
    """Return a client of the bucket of an address, with credentials that may change.

    Raises
    ------
    InvalidInputError
        An option has a value that it cannot have, or one is missing that another one needs, such
        as the secret of an access key.
    """
    settings = cloud_settings(address.scheme, options)
    config = dict(settings.config)
    if address.scheme == uris.S3 and address.authority.endswith(_EXPRESS_BUCKET):
        config["aws_s3_express"] = "true"
    bucket = f"{address.scheme}://{address.authority}"
    try:
        backend: ObjectStore = CLOUDS[address.scheme].from_url(
            bucket,
            config=config,
            client_options=settings.client,
            credential_provider=None if credentials is None else _provider(credentials),
            retry_config={
                "max_retries": settings.max_retries,
                "retry_timeout": settings.retry_timeout,
            },
        )
    except ERRORS as error:
        raise bad_options(error, bucket, secrets=secret_values(options, os.environ)) from None
    return backend


# What obstore calls the credentials that Lance has these names for.
_OBSTORE_NAMES: Final = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "token",
    "google_storage_token": "token",
    "azure_storage_account_key": "access_key",
    "azure_storage_sas_token": "sas_token",
    "azure_storage_token": "token",
}


def _provider(credentials: Credentials) -> Callable[[], dict[str, Any]]:
    def provide() -> dict[str, Any]:
        held = credentials.current()
        named = {_OBSTORE_NAMES[name]: value for name, value in held.options.items()}
        return {**named, "expires_at": datetime.fromtimestamp(held.expires_at, UTC)}

    return provide
