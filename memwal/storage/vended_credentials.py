"""Namespace client from which Lance fetches renewed credentials."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import lance_namespace

from memwal.storage.credentials import Credentials


class VendingNamespace(lance_namespace.LanceNamespace):  # type: ignore[misc]
    """A Lance namespace of one table that only hands out credentials.

    ``options`` are the storage options that do not change.
    """

    def __init__(self, uri: str, options: Mapping[str, str], credentials: Credentials) -> None:
        self._uri = uri
        self._options = dict(options)
        self._credentials = credentials
        # Lance caches open stores by this id.
        name = repr((uri, sorted(self._options.items()), credentials.source)).encode()
        self._id = f"memwal-{hashlib.blake2b(name, digest_size=16).hexdigest()}"

    def namespace_id(self) -> str:
        return self._id

    def describe_table(self, request: object) -> lance_namespace.DescribeTableResponse:
        return lance_namespace.DescribeTableResponse(
            location=self._uri, storage_options=self.storage_options()
        )

    def storage_options(self) -> dict[str, str]:
        """Return all storage options, with the current credentials."""
        return {**self._options, **self._credentials.current().for_lance()}
