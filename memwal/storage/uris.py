"""Addresses of tables: parsing and normalization."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from memwal.errors import InvalidInputError
from memwal.util.safe_json import is_unicode

LOCAL = "file"
MEMORY = "memory"
S3 = "s3"
GCS = "gs"
AZURE = frozenset({"az", "abfss"})
KNOWN = (
    "a local path, file:///path, s3://bucket/path, gs://bucket/path, az://container/path, "
    "abfss://container@account.dfs.core.windows.net/path, memory://name"
)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(/?)(.*)", re.DOTALL)
# A user with a password, before the host that another scheme has in this place.
_USER = re.compile(r"/*[^/:@]*:.*@", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TableUri:
    """Parts of a table's address."""

    scheme: str  # A known scheme; ``file`` for every local path.
    # Bucket or container, with the account if Azure needs it; the name of a memory store;
    # empty for a local path.
    authority: str
    # Absolute path of a local table; else the key of its root, without slashes at its ends.
    path: str

    def __str__(self) -> str:
        if self.scheme == LOCAL:
            return self.path
        return f"{self.scheme}://{self.authority}/{self.path}".rstrip("/")


def parse_uri(uri: str | os.PathLike[str]) -> TableUri:
    """Parse an address into the one spelling of the table.

    A relative path starts at the current folder, and ``~/`` is the home folder. ``%20`` and the
    like are decoded, except in a plain path, as Lance does. InvalidInputError is raised for an
    address that is empty, has an unknown scheme, or contains ``..`` or a password.
    """
    text = os.fspath(uri)
    if not is_unicode(text):
        raise InvalidInputError(
            "the address of a table must be text, and this one holds bytes that are no UTF-8; "
            f"known are {KNOWN}"
        )
    match = _SCHEME.fullmatch(text)
    # A path with a drive, such as C:/tables, where the system knows drives.
    drive = os.path.splitdrive(text)[0]
    if match is None or drive:
        # The text behind such a colon may be a password, which the errors of a path would show.
        first = "" if drive else text.partition("/")[0]
        if first.endswith(":") or ("://" in text and not text.startswith("/")):
            raise _refused(text, "the scheme is not known")
        return _parse_local(text)
    scheme = match[1].lower()
    authority, _, path = match[3].partition("/")
    if not match[2]:
        raise _refused(text, f"write '{scheme}://'")
    if scheme == LOCAL:
        if authority not in ("", "localhost"):
            raise _refused(text, "a file has no host: write file:///absolute/path")
        if _USER.match(path):
            raise _refused(text, "a file has no user: write a path that has '@' in it alone")
        return _parse_local(unquote("/" + path))
    if scheme not in AZURE | {MEMORY, S3, GCS}:
        raise _refused(text, "the scheme is not known")
    return TableUri(scheme, _check_authority(text, scheme, authority), _parse_path(text, path))


def is_relative(uri: str) -> bool:
    """Return whether an address is a path that starts at the current folder."""
    return _SCHEME.fullmatch(uri) is None and not os.path.isabs(uri)


def _parse_local(path: str) -> TableUri:
    if not path or "\0" in path:
        raise _refused(path, "the path is empty or has a NUL in it")
    if path == "~" or path.startswith(f"~{os.sep}"):
        # As Lance does, which takes other names with a tilde for what they are.
        path = os.path.expanduser(path)
    # POSIX keeps two leading slashes of a path; here they mean the same as one.
    return TableUri(LOCAL, "", "/" + os.path.abspath(path).lstrip("/"))


def _check_authority(uri: str, scheme: str, authority: str) -> str:
    secret = ":" in authority or ("@" in authority and scheme not in AZURE)
    if secret:
        raise _refused(uri, "credentials do not belong into it: give them as storage_options")
    if not authority:
        raise _refused(uri, "the bucket, container or name is missing")
    return authority


def _parse_path(uri: str, path: str) -> str:
    if "?" in path or "#" in path:
        raise _refused(uri, "it must not have '?' or '#' in it: give options as storage_options")
    decoded = unquote(path).strip("/")
    parts = decoded.split("/")
    if decoded and ("" in parts or "." in parts or ".." in parts or "\0" in decoded):
        raise _refused(uri, "no part of the path may be '', '.' or '..'")
    if unquote(decoded) != decoded:
        # Lance would decode the path once more, and open another one.
        raise _refused(uri, "a percent sign is encoded twice")
    return decoded


def _refused(uri: str, why: str) -> InvalidInputError:
    # The message shows neither a query nor the text before an '@' or after a ':': these can be
    # secrets, which may contain any character.
    match = _SCHEME.fullmatch(uri)
    _, at, rest = (match[3] if match else uri).rpartition("@")
    authority, slash, path = re.split(r"[?#]", rest)[0].partition("/")
    if match:
        authority = f"{match[1]}://{'...' if at else ''}{at}{authority.partition(':')[0]}"
    shown = f"{authority}{slash}{path}"
    return InvalidInputError(f"{shown!r} is not the address of a table: {why}. Known are {KNOWN}")
