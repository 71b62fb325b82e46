"""Minimal permissions of each role on a table's objects.

The security page, the command ``memwal rights`` and the tests, in which every role works under its
own policy, are derived from :data:`PERMISSIONS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from memwal.errors import InvalidInputError
from memwal.storage import uris


class Role(StrEnum):
    """Task of a process at a table. A process can have several roles."""

    READER = "reader"
    """Reads rows and status, and verifies without repairs."""
    PINNER = "pinner"
    """Reads under read tags, as Spark loads do, and copies the table elsewhere."""
    CONSUMER = "consumer"
    """Reads changes, and keeps its token in the table."""
    WRITER = "writer"
    """Writes: claims, appends, flushes."""
    MERGER = "merger"
    """Merges, compacts, builds indexes."""
    PUBLISHER = "publisher"
    """Publishes snapshots of the regions."""
    COLLECTOR = "collector"
    """Collects garbage, except versions of the base table."""
    CLEANER = "cleaner"
    """Collects garbage, including versions of the base table."""
    REPAIRER = "repairer"
    """Verifies, and makes the repairs that are possible at any time."""
    ADMINISTRATOR = "administrator"
    """Creates tables, changes schema, indexes and regions, runs ``memwal doctor``, restores."""


class Action(StrEnum):
    """Operation on objects."""

    LIST = "list"
    READ = "read"
    CREATE = "create"
    """Store under a key that does not exist: put-if-absent."""
    PUT = "put"
    """Store under any key, replacing an existing object."""
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Permission:
    """Permission for one operation on some objects."""

    action: Action
    """The action."""
    keys: tuple[str, ...]
    """Patterns of keys below the root of the table; ``*`` matches anything, including slashes."""


_EVERYTHING: Final = ("*",)
_LIST_AND_READ: Final = (Permission(Action.LIST, _EVERYTHING), Permission(Action.READ, _EVERYTHING))
_READ_TAGS: Final = ("_refs/tags/memwal-read-*",)
_CONSUMER_TAGS: Final = ("_refs/tags/memwal-consumer-*",)
# Replaced if they are as they were read.
_CONSUMERS: Final = ("_memwal/consumers/*",)
_MANIFESTS: Final = ("_mem_wal/*/manifest/*.binpb",)
_HINTS: Final = ("_mem_wal/*/manifest/version_hint.json",)
_LOG: Final = ("_mem_wal/*/wal/*.arrow",)
_APPLIED_STEPS: Final = ("_mem_wal/*/applied/*.json",)
_ABANDONED: Final = ("_mem_wal/*/abandoned/*.json",)
_GENERATIONS: Final = ("_mem_wal/*_gen_*",)
_ORPHAN_MARKS: Final = ("_mem_wal/*_gen_*/orphan",)
_VERSIONS: Final = ("_versions/*.manifest",)
# Lance stores a manifest under this name before memwal stores it under its final one.
_STAGED: Final = ("_versions/*.manifest-*",)
# Keys of the tasks of a divided merge.
_MERGES: Final = ("_memwal/merges/*",)
# Rows that tasks of Spark staged for the commit of a write.
_STAGED_ROWS: Final = ("_memwal/writes/*",)
# Rows that an index cannot hold.
_UNINDEXABLE: Final = ("_memwal/unindexable/*",)
_MARKS: Final = ("_memwal_regions/*",)
# After each commit of a region's manifest. Without this right, changes are found later.
_TRACE: Final = ("_memwal/changed",)
_SNAPSHOTS: Final = ("_indices/*/index.lance",)
_COMMIT: Final = (Permission(Action.CREATE, _VERSIONS), Permission(Action.DELETE, _STAGED))

_COLLECTION: Final = (
    *_LIST_AND_READ,
    Permission(Action.CREATE, (*_MANIFESTS, *_APPLIED_STEPS, *_MARKS)),
    Permission(Action.PUT, (*_HINTS, *_TRACE, *_ORPHAN_MARKS, *_CONSUMERS)),
    Permission(
        Action.DELETE,
        (
            *_MANIFESTS,
            *_LOG,
            *_APPLIED_STEPS,
            *_GENERATIONS,
            "_indices/*",
            *_STAGED,
            *_MERGES,
            *_STAGED_ROWS,
            *_READ_TAGS,
            *_CONSUMER_TAGS,
        ),
    ),
)

PERMISSIONS: Final[Mapping[Role, tuple[Permission, ...]]] = {
    Role.READER: _LIST_AND_READ,
    Role.PINNER: (
        *_LIST_AND_READ,
        Permission(Action.PUT, _READ_TAGS),
        Permission(Action.DELETE, _READ_TAGS),
    ),
    Role.CONSUMER: (
        *_LIST_AND_READ,
        Permission(Action.CREATE, _CONSUMER_TAGS),
        Permission(Action.PUT, (*_CONSUMERS, *_TRACE)),
        Permission(Action.DELETE, _CONSUMER_TAGS),
    ),
    Role.WRITER: (
        *_LIST_AND_READ,
        Permission(Action.CREATE, (*_MANIFESTS, *_LOG, *_APPLIED_STEPS, *_MARKS)),
        Permission(Action.PUT, (*_HINTS, *_TRACE, *_GENERATIONS, *_ABANDONED, *_STAGED_ROWS)),
        Permission(Action.DELETE, _STAGED_ROWS),
    ),
    Role.MERGER: (
        *_LIST_AND_READ,
        *_COMMIT,
        Permission(Action.CREATE, _MARKS),
        Permission(
            Action.PUT,
            (
                "data/*",
                "_deletions/*",
                "_indices/*",
                "_transactions/*",
                *_STAGED,
                *_MERGES,
                *_UNINDEXABLE,
            ),
        ),
        Permission(Action.DELETE, (*_MERGES, *_UNINDEXABLE, *_MARKS)),
    ),
    Role.PUBLISHER: (
        *_LIST_AND_READ,
        *_COMMIT,
        # For a region without a flush for a long time, it records the position of the log.
        Permission(Action.CREATE, (*_MANIFESTS, *_MARKS)),
        Permission(Action.PUT, (*_SNAPSHOTS, "_transactions/*", *_STAGED, *_HINTS, *_TRACE)),
    ),
    Role.COLLECTOR: _COLLECTION,
    Role.CLEANER: (
        *_COLLECTION,
        Permission(Action.DELETE, ("data/*", "_deletions/*", "_transactions/*", "_versions/*")),
    ),
    Role.REPAIRER: (
        *_LIST_AND_READ,
        *_COMMIT,
        # To quarantine rows of a log it claims the region, which writes a fence into the log.
        Permission(Action.CREATE, (*_MANIFESTS, *_LOG, *_MARKS)),
        Permission(
            Action.PUT,
            ("_indices/*", "_transactions/*", *_STAGED, *_HINTS, *_TRACE, *_GENERATIONS),
        ),
    ),
    Role.ADMINISTRATOR: (
        *_LIST_AND_READ,
        Permission(Action.PUT, _EVERYTHING),
        Permission(Action.DELETE, _EVERYTHING),
    ),
}

_S3_ACTIONS: Final[Mapping[Action, tuple[str, ...]]] = {
    Action.LIST: ("s3:ListBucket",),
    Action.READ: ("s3:GetObject",),
    Action.CREATE: ("s3:PutObject",),
    Action.PUT: ("s3:PutObject", "s3:AbortMultipartUpload"),
    Action.DELETE: ("s3:DeleteObject",),
}

_ONLY_IF_ABSENT: Final = {"Null": {"s3:if-none-match": "false"}}
# Characters with a meaning in a policy.
_SPECIAL: Final = re.compile(r"[*?$]")


def permissions_of(roles: Iterable[Role]) -> tuple[Permission, ...]:
    """Return the permissions that several roles together need, in the order of the actions.

    Parameters
    ----------
    roles : iterable of Role
    """
    keys_by_action: dict[Action, dict[str, None]] = {action: {} for action in Action}
    for role in roles:
        for permission in PERMISSIONS[role]:
            keys_by_action[permission.action].update(dict.fromkeys(permission.keys))
    return tuple(
        Permission(action, _EVERYTHING if "*" in keys else tuple(keys))
        for action, keys in keys_by_action.items()
        if keys
    )


def s3_policy(uri: str, roles: Iterable[Role], *, conditions: bool = True) -> dict[str, Any]:
    """Return the policy (JSON values) that gives roles their permissions on a table in S3.

    AWS and compatible servers accept it for an identity: a role, a user, a service account. A
    bucket policy also needs a ``Principal`` in each statement.

    Parameters
    ----------
    uri, roles
        The table, and the roles that the identity has there.
    conditions : bool, default True
        Whether immutable objects may be stored only if the key does not exist (condition key
        ``s3:if-none-match``). Only collectors and administrators can then change or delete an
        existing WAL entry or manifest. Servers without this condition key refuse such requests.

    Raises
    ------
    InvalidInputError
        The address is not on S3, or contains ``*``, ``?`` or ``$``.
    """
    address = uris.parse_uri(uri)
    if address.scheme != uris.S3:
        raise InvalidInputError(
            f"policies exist for s3:// only, not for {uri}; the permissions themselves are in "
            "memwal.permissions.PERMISSIONS, and the guide to security lists them for other stores"
        )
    if _SPECIAL.search(address.authority + address.path):
        raise InvalidInputError(
            f"{uri} contains a character that is special in an S3 policy (*, ? or $)"
        )
    bucket = f"arn:aws:s3:::{address.authority}"
    below = f"{address.path}/" if address.path else ""
    statements: list[dict[str, Any]] = []
    for permission in permissions_of(roles):
        statement: dict[str, Any] = {
            "Sid": permission.action.value.capitalize(),
            "Effect": "Allow",
            "Action": list(_S3_ACTIONS[permission.action]),
        }
        if permission.action is Action.LIST:
            statement["Resource"] = [bucket]
            if below:
                # "IfExists": a request for an absent object has no prefix, and S3 answers that the
                # object is absent only if the caller may list.
                prefixes = {"s3:prefix": [address.path, below + "*"]}
                statement["Condition"] = {"StringLikeIfExists": prefixes}
        else:
            statement["Resource"] = [f"{bucket}/{below}{key}" for key in permission.keys]
        if permission.action is Action.CREATE and conditions:
            statement["Condition"] = _ONLY_IF_ABSENT
        statements.append(statement)
    return {"Version": "2012-10-17", "Statement": statements}
