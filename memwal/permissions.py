"""Minimal rights of each role on a table's objects: the one table that all consumers share.

The security page, the command ``memwal rights`` and the tests, in which every role works under its
own policy, are derived from it.
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
    """What somebody does with a table. A process that does several things has several."""

    READER = "reader"
    """Reads, looks at the status, verifies without repairs."""
    PINNER = "pinner"
    """Reads in Spark loads that protect what they read, and copies the table elsewhere."""
    WRITER = "writer"
    """Writes: claims, appends, flushes."""
    MERGER = "merger"
    """Merges, compacts, builds indexes."""
    PUBLISHER = "publisher"
    """Publishes snapshots of the regions."""
    COLLECTOR = "collector"
    """Collects garbage, without versions of the base table."""
    CLEANER = "cleaner"
    """Collects garbage, versions of the base table among it."""
    REPAIRER = "repairer"
    """Verifies, and repairs what can be repaired at any time."""
    ADMINISTRATOR = "administrator"
    """Makes tables, changes schema, indexes and regions, asks the doctor, restores."""


class Action(StrEnum):
    """What is done with objects."""

    LIST = "list"
    READ = "read"
    CREATE = "create"
    """Store under a name that is free: put-if-absent."""
    PUT = "put"
    """Store under any name, also over what is there."""
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Permission:
    """That something may be done with some objects.

    Attributes
    ----------
    act : Act
    keys : tuple of str
        Patterns of keys below the root of the table; ``*`` stands for anything, slashes too.
    """

    act: Action
    keys: tuple[str, ...]


_EVERYTHING: Final = ("*",)
_LOOK: Final = (Permission(Action.LIST, _EVERYTHING), Permission(Action.READ, _EVERYTHING))
_READ_TAGS: Final = ("_refs/tags/memwal-read-*",)
_MANIFESTS: Final = ("_mem_wal/*/manifest/*.binpb",)
_HINTS: Final = ("_mem_wal/*/manifest/version_hint.json",)
_LOG: Final = ("_mem_wal/*/wal/*.arrow",)
_BOOKS: Final = ("_mem_wal/*/applied/*.json",)
_ABANDONED: Final = ("_mem_wal/*/abandoned/*.json",)
_GENERATIONS: Final = ("_mem_wal/*_gen_*",)
_ORPHAN_MARKS: Final = ("_mem_wal/*_gen_*/orphan",)
_VERSIONS: Final = ("_versions/*.manifest",)
# Lance puts a manifest there before memwal gives it its name.
_STAGED: Final = ("_versions/*.manifest-*",)
_SNAPSHOTS: Final = ("_indices/*/index.lance",)
_COMMIT: Final = (Permission(Action.CREATE, _VERSIONS), Permission(Action.DELETE, _STAGED))

_COLLECTION: Final = (
    *_LOOK,
    Permission(Action.CREATE, (*_MANIFESTS, *_BOOKS)),
    Permission(Action.PUT, (*_HINTS, *_ORPHAN_MARKS)),
    Permission(
        Action.DELETE,
        (*_MANIFESTS, *_LOG, *_BOOKS, *_GENERATIONS, "_indices/*", *_STAGED, *_READ_TAGS),
    ),
)

PERMISSIONS: Final[Mapping[Role, tuple[Permission, ...]]] = {
    Role.READER: _LOOK,
    Role.PINNER: (
        *_LOOK,
        Permission(Action.PUT, _READ_TAGS),
        Permission(Action.DELETE, _READ_TAGS),
    ),
    Role.WRITER: (
        *_LOOK,
        Permission(Action.CREATE, (*_MANIFESTS, *_LOG, *_BOOKS)),
        Permission(Action.PUT, (*_HINTS, *_GENERATIONS, *_ABANDONED)),
    ),
    Role.MERGER: (
        *_LOOK,
        *_COMMIT,
        Permission(
            Action.PUT, ("data/*", "_deletions/*", "_indices/*", "_transactions/*", *_STAGED)
        ),
    ),
    Role.PUBLISHER: (
        *_LOOK,
        *_COMMIT,
        # It tells a region that has not been flushed for long where its log is.
        Permission(Action.CREATE, _MANIFESTS),
        Permission(Action.PUT, (*_SNAPSHOTS, "_transactions/*", *_STAGED, *_HINTS)),
    ),
    Role.COLLECTOR: _COLLECTION,
    Role.CLEANER: (
        *_COLLECTION,
        Permission(Action.DELETE, ("data/*", "_deletions/*", "_transactions/*", "_versions/*")),
    ),
    Role.REPAIRER: (
        *_LOOK,
        *_COMMIT,
        Permission(Action.CREATE, _MANIFESTS),
        Permission(Action.PUT, (*_SNAPSHOTS, "_transactions/*", *_STAGED, *_HINTS, *_GENERATIONS)),
    ),
    Role.ADMINISTRATOR: (
        *_LOOK,
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
# They stand for something in a policy.
_SPECIAL: Final = re.compile(r"[*?$]")


def permissions_of(roles: Iterable[Role]) -> tuple[Permission, ...]:
    """What several roles together need: one right for each act.

    Parameters
    ----------
    roles : iterable of Role

    Returns
    -------
    tuple of Right
        In the order of the acts.
    """
    found: dict[Action, dict[str, None]] = {act: {} for act in Action}
    for role in roles:
        for right in PERMISSIONS[role]:
            found[right.act].update(dict.fromkeys(right.keys))
    merged = {act: _EVERYTHING if "*" in keys else tuple(keys) for act, keys in found.items()}
    return tuple(Permission(act, keys) for act, keys in merged.items() if keys)


def s3_policy(uri: str, roles: Iterable[Role], *, conditions: bool = True) -> dict[str, Any]:
    """The policy that gives roles their rights on one table in S3, as AWS and its kin take it.

    It goes with an identity: a role, a user, a service account. A policy of a bucket wants a
    ``Principal`` in each statement as well.

    Parameters
    ----------
    uri : str
        Address of the table.
    roles : iterable of Role
    conditions : bool, default True
        Whether names that are taken for good may be taken only when they are free (the condition
        key ``s3:if-none-match``). Then nobody but collectors and administrators can change a log
        or a manifest that is there. Servers that do not know the key refuse such requests.

    Returns
    -------
    dict
        To be written as JSON.

    Raises
    ------
    InvalidInputError
        It is no address of S3, or one with ``*``, ``?`` or ``$`` in it.
    """
    address = uris.parse_uri(uri)
    if address.scheme != uris.S3:
        raise InvalidInputError(
            f"policies can be written for s3:// only, not for {uri}; the rights themselves are in "
            "memwal.permissions.PERMISSIONS, and the guide to security says what they are elsewhere"
        )
    if _SPECIAL.search(address.authority + address.path):
        raise InvalidInputError(f"{uri} has a character in it that means something in a policy")
    bucket = f"arn:aws:s3:::{address.authority}"
    below = f"{address.path}/" if address.path else ""
    statements: list[dict[str, Any]] = []
    for right in permissions_of(roles):
        statement: dict[str, Any] = {
            "Sid": right.act.value.capitalize(),
            "Effect": "Allow",
            "Action": list(_S3_ACTIONS[right.act]),
        }
        if right.act is Action.LIST:
            statement["Resource"] = [bucket]
            if below:
                # "If exists": who asks for an absent object names no prefix, and is told that it is
                # absent only when he may list.
                prefixes = {"s3:prefix": [address.path, below + "*"]}
                statement["Condition"] = {"StringLikeIfExists": prefixes}
        else:
            statement["Resource"] = [f"{bucket}/{below}{key}" for key in right.keys]
        if right.act is Action.CREATE and conditions:
            statement["Condition"] = _ONLY_IF_ABSENT
        statements.append(statement)
    return {"Version": "2012-10-17", "Statement": statements}
