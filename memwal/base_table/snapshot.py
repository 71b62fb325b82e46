"""A version of the base table, with the MemWAL index details of the same version.

Also opens Lance data sets, and translates exceptions of pylance into errors of memwal.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import lance
import pyarrow as pa
from lance.optimize import Compaction

from memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    MemWalError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
    TableSetupError,
)
from memwal.format.lance_manifest import (
    IndexEntry,
    branch_of,
    check_lance_schema,
    find_mem_wal_index,
)
from memwal.format.memwal_index import IndexDetails
from memwal.format.paths import table_manifest_keys
from memwal.region.rows import with_field_ids
from memwal.storage.location import TableLocation
from memwal.util.redaction import redact_store_response

# Whole words and numbers only: paths are full of digits.
_FULL = re.compile(r"no space left|file too large|quota exceeded|\bos error (27|28|122)\b")
_NO_ACCESS = re.compile(
    r"access ?denied|permission denied|invalidaccesskeyid|signaturedoesnotmatch|expiredtoken"
    r"|requesttimetooskewed|credentials source"
    r"|(?<![\w-])(401|403)(?![\w-])"
)

_ELSEWHERE = re.compile(
    r"authorizationheadermalformed|permanentredirect|illegallocationconstraint"
    r"|redirect without location"
)

# The request that a store refused, in errors of Lance, and the permission that it needs.
_REFUSED_REQUEST = re.compile(r"performing (GET|HEAD|PUT|POST|DELETE|LIST)(?: request)?\b")
_NEEDED_PERMISSIONS = {"PUT": "put", "POST": "put", "DELETE": "delete"}

# Texts of several types of Lance's errors about damaged files.
_DAMAGED = re.compile(
    r"corrupt|failed to decode protobuf|for object of size|file size is too small"
    r"|does not appear to be a lance file|invalid magic|cannot read ranges"
    r"|outside (of )?(file|metadata region)|failed to fill whole buffer"
)

# The position in Lance's source code at the end of its errors.
_SOURCE = re.compile(r",?\s*/\S+\.rs:\d+(:\d+)?")
_MAX_LENGTH = 400


@dataclass(frozen=True, slots=True)
class BaseTable:
    """A pinned version of the base table.

    Rows and merge progress are from the same version. Therefore "this generation is already merged"
    holds for exactly the rows that are read.
    """

    location: TableLocation
    dataset: lance.LanceDataset  # checked out at ``version``
    schema: pa.Schema  # schema of the rows, with Lance's field metadata
    primary_key: tuple[str, ...]  # key columns in key order
    # Entry of the MemWAL index in the manifest; None if MemWAL is not enabled.
    index: IndexEntry | None
    details: IndexDetails  # decoded details of the entry; empty if MemWAL is not enabled
    # Hash of the version's manifest. The manifest lists the files with the rows, so an equal digest
    # means equal rows.
    digest: bytes
    branch: str | None = None  # branch of the table; None for the main branch

    @property
    def version(self) -> int:
        """Version of the table."""
        return int(self.dataset.version)

    def require_mem_wal(self) -> None:
        """Raise TableSetupError unless the table has a primary key and MemWAL is enabled.

        Branches are refused too: a branch has no regions and no merge progress of its own, and
        those that it inherited are of another table.
        """
        if self.branch is not None:
            raise TableSetupError(
                f"{self.location} is the branch {self.branch} of a table, which has no regions of "
                "its own; open the table, or read the branch with pylance"
            )
        if not self.primary_key:
            raise TableSetupError(
                f"{self.location} has no primary key; "
                "name one with memwal.enable(uri, primary_key=[...], region_spec=...)"
            )
        if self.index is None:
            raise TableSetupError(
                f"MemWAL is not enabled on {self.location}; "
                "call memwal.enable(uri, region_spec=...)"
            )

    @property
    def identified_schema(self) -> pa.Schema:
        """Schema with Lance's field ids in the metadata of its fields, at every level."""
        return with_field_ids(self.schema, self.dataset.lance_schema)

    def field_ids(self) -> dict[str, int]:
        """Return the Lance field id of each top-level column, by name."""
        return {field.name(): field.id() for field in self.dataset.lance_schema.fields()}


def open_base(location: TableLocation, *, version: int | None = None) -> BaseTable:
    """Open the base table at its latest version, or at ``version``.

    Raises TableSetupError if there is no Lance table, or it does not have this version.
    """
    try:
        dataset = open_dataset(location, version=version)
    except ObjectNotFoundError as error:
        what = f"version {version} of the table" if version is not None else "Lance table"
        raise TableSetupError(
            f"there is no {what} at {location}; create one with memwal.create(uri, schema, ...)"
        ) from error
    return base_from_dataset(location, dataset)


def open_dataset(
    location: TableLocation, path: str = "", *, version: int | None = None
) -> lance.LanceDataset:
    """Open a Lance data set: the base table, or one in a folder below it.

    Raises ObjectNotFoundError if there is no data set, or it does not have this version, and errors
    of the store as for any read.
    """
    uri = location.child(path) if path else location.uri
    try:
        with lance_errors(f"opening {uri}"):
            dataset = lance.LanceDataset(uri, version=version, **location.lance_arguments())
    except OverflowError:
        # The version does not fit the 64 bits that Lance has for it.
        raise ObjectNotFoundError(f"opening {uri}: there is no version {version}") from None
    check_lance_schema(repr(dataset.lance_schema), name=uri)
    with lance_errors(f"opening {uri}"):
        # The first access converts the schema, and raises for unknown types: do it here, where the
        # error is translated.
        _ = dataset.schema
    if dataset.version < 1:
        # Lance reads a manifest of zero bytes as an empty one.
        raise CorruptDataError(
            f"the newest manifest of {uri} was not written to its end; nothing was changed: "
            "restore it from a backup, or move it away if the version before it is complete"
        )
    return dataset


def base_from_dataset(location: TableLocation, dataset: lance.LanceDataset) -> BaseTable:
    """Return the base table of an open data set: reads its manifest, primary key and details."""
    manifest = read_table_manifest(location, int(dataset.version))
    index = find_mem_wal_index(manifest)
    return BaseTable(
        location=location,
        dataset=dataset,
        schema=dataset.schema,
        primary_key=tuple(f.name() for f in dataset.lance_schema.unenforced_primary_key()),
        index=index,
        details=IndexDetails.decode(index.details) if index is not None else IndexDetails(),
        digest=hashlib.blake2b(manifest, digest_size=16).digest(),
        branch=branch_of(manifest),
    )


def table_manifest_key(location: TableLocation, version: int) -> str:
    """Return the key of the manifest file of a version, in the naming scheme of the table."""
    inverted, plain = table_manifest_keys(version)
    if location.store.exists(inverted):
        return inverted
    if location.store.exists(plain):
        return plain
    raise TableSetupError(f"version {version} of {location} has no manifest; it was cleaned up")


def read_table_manifest(location: TableLocation, version: int) -> bytes:
    """Read the manifest file of a version."""
    for key in table_manifest_keys(version):
        try:
            return location.store.get(key)
        except ObjectNotFoundError:
            continue
    raise TableSetupError(f"version {version} of {location} has no manifest; it was cleaned up")


def small_fragment_ids(base: BaseTable, *, target_rows: int) -> frozenset[int]:
    """Return the ids of the fragments that a compaction would replace."""
    plan = Compaction.plan(base.dataset, {"target_rows_per_fragment": target_rows})
    return frozenset(fragment.id for task in plan.tasks for fragment in task.fragments)


@contextmanager
def lance_errors(doing: str, *, gone: str | None = None) -> Iterator[None]:
    """Raise memwal errors for pylance's errors in the block; see :func:`translate_lance_error`.

    ``doing`` begins the messages; ``gone`` is the whole message if a file is not found. For some
    damaged bytes Lance panics, which in Python is not an ``Exception``.
    """
    try:
        yield
    except MemWalError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        translated = translate_lance_error(error, doing)
        if gone is not None and isinstance(translated, ObjectNotFoundError):
            translated = ObjectNotFoundError(gone)
        raise translated from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise CorruptDataError(
            f"{doing}: Lance cannot make sense of what is stored ({first_line(error)}); nothing "
            "was changed; run memwal verify, which names the damaged object"
        ) from error


def translate_lance_error(error: Exception, doing: str) -> MemWalError:
    """Return the memwal error for an exception of pylance.

    Lance raises ``ValueError`` and ``OSError`` with the cause only in the text. The answer of a
    store is cut out of it, see :func:`~memwal.util.redaction.redact_store_response`.
    """
    redact_store_response(error)
    text = str(error)
    lowered = text.lower()
    if _FULL.search(lowered):
        return StoreFullError(f"{doing}: no space left; free some, then try again")
    if _DAMAGED.search(lowered):
        return CorruptDataError(
            f"{doing}: {_short_text(text, error)}; nothing was changed; run memwal verify, which "
            "names what is damaged"
        )
    if "invalid user input" in lowered:
        return InvalidInputError(f"{doing}: {text.splitlines()[0]}")
    if "nosuchbucket" in lowered or "containernotfound" in lowered:
        return TableSetupError(f"{doing}: create the bucket or container, or correct the address")
    if _ELSEWHERE.search(lowered):
        return TableSetupError(f"{doing}: the bucket is in another region: set aws_region to it")
    if "not found" in lowered or "no such file" in lowered or "notfound" in lowered:
        return ObjectNotFoundError(f"{doing}: not found")
    if _NO_ACCESS.search(lowered):
        return StoreAccessError(
            f"{doing}: access denied; check the credentials of the table, {_lacking_right(text)}; "
            "memwal rights tells what each role needs"
        )
    return StoreUnavailableError(f"{doing}: {_short_text(text, error)}")


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of Lance, whose type no Python module exports."""
    return type(error).__name__ == "PanicException"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, else its type."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _short_text(text: str, error: Exception) -> str:
    return _SOURCE.sub("", text.splitlines()[0])[:_MAX_LENGTH] if text else type(error).__name__


def _lacking_right(text: str) -> str:
    """Return the missing permission, for the message, as far as an error of Lance shows it."""
    request = _REFUSED_REQUEST.search(text)
    if request is None:
        return "and what they allow"
    needed = _NEEDED_PERMISSIONS.get(request[1], "get or list")
    return f"which lack the right to {needed} objects there"
