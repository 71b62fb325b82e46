"""Open the store of a table, and check that it supports the operations of the protocol."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from uuid import uuid4

from memwal.errors import (
    InvalidInputError,
    MemWalError,
    ObjectExistsError,
    TableSetupError,
    UnsupportedStoreError,
)
from memwal.storage import uris
from memwal.storage.credentials import credentials_for
from memwal.storage.local import LocalStore
from memwal.storage.object_store import ObjectStore
from memwal.util.log import Secrets, secret_values


def open_store(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    *,
    durable: bool = True,
) -> ObjectStore:
    """Open the store of one table; nothing is read or written yet.

    ``uri`` is a local path or ``file://``; ``s3://``, ``gs://``, ``az://`` or ``abfss://``; or
    ``memory://name``, which names one store for the whole process and is for tests. A local store
    that is not ``durable`` skips fsync; see :class:`~memwal.storage.local.LocalStore`.

    ``storage_options`` are Lance's, such as ``aws_endpoint``, ``allow_http``,
    ``aws_access_key_id``, ``timeout`` or ``client_max_retries`` (default 3). Missing options are
    taken from the environment variables that Lance reads; credentials that are in neither are
    searched as obstore does: web identity, container, machine. boto3 reads AWS profiles, and
    ``memwal_credentials_from`` names other sources, see :mod:`memwal.storage.credentials`. On a
    server without S3's bulk delete set ``aws_disable_bulk_delete``.
    """
    address = uris.parse_uri(uri)
    options = check_options(storage_options or {})
    if address.scheme == uris.LOCAL:
        return LocalStore(address.path, durable=durable)
    # Takes some milliseconds to import, and a local table does not need it.
    from memwal.storage.cloud import CloudStore, cloud_backend, memory_backend

    if address.scheme == uris.MEMORY:
        return CloudStore(memory_backend(address.authority), uri=str(address), prefix=address.path)
    credentials = credentials_for(address.scheme, options)
    return CloudStore(
        cloud_backend(address, options, credentials),
        uri=str(address),
        prefix=address.path,
        secrets=Secrets(secret_values(options, os.environ), credentials or ()),
    )


def check_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of storage options; refuse one that is not text."""
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInputError(
                f"the storage option {key!r} must be text, not {type(value).__name__}: write "
                "numbers and booleans as '3' and 'true'"
            )
    return dict(options)


def check_reachable(store: ObjectStore) -> None:
    """Check that a table can be at the address, so that a wrong one fails at once.

    Costs one small request to an object store. Lance, which sends the next requests, retries twenty
    times or more before it raises, also if a local address is that of a file. Raises
    TableSetupError if it is.
    """
    if not store.is_local:
        store.list_folders("")
    elif os.path.isfile(store.uri):
        raise TableSetupError(f"{store.uri} is a file; the address of a table is that of a folder")


def check_put_if_absent(store: ObjectStore) -> None:
    """Check that the store refuses a second create of a key, on which the whole protocol relies.

    Costs four small requests, under a random key in the root of the table. Done once, when a table
    is set up. UnsupportedStoreError is raised if the store overwrote an object that existed, or
    refused to try.
    """
    key = f"_probe-{uuid4().hex}"
    try:
        refused = _refuses_second_create(store, key)
    except BaseException:
        # The caller must see the first error, not one of the clean-up.
        with suppress(MemWalError):
            store.delete(key)
        raise
    store.delete(key)
    if not refused:
        raise UnsupportedStoreError(
            f"{store.uri} overwrites an existing object on a conditional create, so two writers "
            "would overwrite each other's log: use a store with conditional puts (If-None-Match), "
            f"or let a database decide (memwal_commits_in); memwal doctor {store.uri} shows details"
        )


def _refuses_second_create(store: ObjectStore, key: str) -> bool:
    # If the client retries the first create, it can find its own object.
    with suppress(ObjectExistsError):
        store.create(key, b"first")
    try:
        store.create(key, b"second")
    except ObjectExistsError:
        return store.get(key) == b"first"
    return False
