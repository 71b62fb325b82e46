"""Where credentials come from: what storage options name, and what lies in the environment."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from memwal.errors import InvalidInputError, StoreAccessError
from memwal.extras import needs
from memwal.storage import uris
from memwal.storage.credentials import EXPIRES, NAMES, Credentials, Fetch
from memwal.storage.options_file import read_options_file

CREDENTIALS_FROM: Final = "memwal_credentials_from"
"""Storage option that names where credentials come from: ``file:/path``, ``boto3``,
``boto3:profile``, or a name that is registered or an entry point."""

_ENTRY_POINTS: Final = "memwal.credentials"
_FILE: Final = "file:"
_BOTO3: Final = "boto3"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")

# Storage options with what tokens are had for, again and again.
_LASTING = frozenset(
    {
        "google_application_credentials",
        "google_service_account",
        "google_service_account_key",
        "google_service_account_path",
        "azure_storage_client_secret",
        "azure_client_secret",
        "client_secret",
    }
)
# How the environment gives them, in the order in which they are looked for.
_VARIABLES: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    uris.S3: (
        ("from the environment, never asked again", ("AWS_ACCESS_KEY_ID",)),
        ("by web identity, renewed", ("AWS_WEB_IDENTITY_TOKEN_FILE",)),
        ("of the container, renewed", ("AWS_CONTAINER_CREDENTIALS_",)),
    ),
    uris.GCS: (("from a file of the environment, renewed", ("GOOGLE_",)),),
    **dict.fromkeys(
        uris.AZURE,
        (
            ("by workload identity, renewed", ("AZURE_FEDERATED_TOKEN_FILE",)),
            ("from the environment", ("AZURE_",)),
        ),
    ),
}

_registered: dict[str, Fetch] = {}


def register_credentials(name: str, fetch: Fetch) -> None:
    """Give a name to a source of credentials, for the storage option ``memwal_credentials_from``.

    The name counts in this process. One that has to be known in others too, such as Spark's
    executors, is an entry point of the group ``memwal.credentials`` in a package that is installed
    there.

    Parameters
    ----------
    name : str
        Letters, digits, ``_``, ``.`` and ``-``. A name that was registered before gets the new
        source, which tables that are open ask from their next renewal on.
    fetch : callable
        Takes nothing and returns storage options: ``aws_access_key_id``, ``aws_secret_access_key``,
        ``aws_session_token``; ``google_storage_token``; ``azure_storage_sas_token``,
        ``azure_storage_token`` or ``azure_storage_account_key``. With ``expires_at_millis`` (text,
        milliseconds since 1970) it is called again five minutes before that, or at half of a
        shorter life; without, every minute. It is called from any thread, one at a time.

    Raises
    ------
    InvalidInputError
        The name is not one, or is taken by memwal.
    """
    if not _NAME.fullmatch(name) or name == _BOTO3:
        raise InvalidInputError(
            f"{name!r} cannot name a source of credentials: use letters, digits, '_', '.' and '-'; "
            f"{_BOTO3!r} is taken"
        )
    _registered[name] = fetch
    cached_credentials.cache_clear()


def credentials_for(
    scheme: str, options: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> Credentials | None:
    """The credentials that storage options name, or None when they are given or found otherwise.

    Profiles of AWS, which obstore does not read, are had through boto3: one that is named by the
    option ``aws_profile`` or by ``$AWS_PROFILE``, or the default one where there are such files.

    Raises
    ------
    InvalidInputError
        No such source is known here.
    MissingExtraError
        It is a profile of AWS, and boto3 is not installed.
    """
    source = options.get(CREDENTIALS_FROM)
    if source is None and scheme == uris.S3:
        source = _profile(options, environment)
    return None if source is None else cached_credentials(source, scheme)


def describe_credentials(
    scheme: str, options: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> str:
    """Say where the credentials of storage options come from; no value of theirs is shown."""
    if scheme not in NAMES:
        return "none are needed"
    found = credentials_for(scheme, options, environment)
    if found is not None:
        return f"from the source {found.source!r}, asked again before they end"
    given = {key.lower() for key in options}
    names = {name for key, others in NAMES[scheme].items() for name in (key, *others)}
    fixed, lasting = given & names, given & _LASTING
    if fixed:
        return f"from the storage options ({', '.join(sorted(fixed))}), never asked again"
    if lasting:
        return f"from the storage options ({', '.join(sorted(lasting))}), which do not end"
    if any("skip_signature" in key for key in given):
        return "none: requests are not signed (skip_signature)"
    for what, beginnings in _VARIABLES[scheme]:
        named = sorted(name for name in environment if name.startswith(beginnings))
        if named:
            return f"{what} ({', '.join(named)})"
    return "of the machine: its instance metadata is asked"


@functools.lru_cache(maxsize=512)
def cached_credentials(source: str, scheme: str) -> Credentials:
    """The credentials of a source, which all stores of this process share."""
    if scheme not in NAMES:
        raise InvalidInputError(
            f"{CREDENTIALS_FROM} is for object stores, and {scheme} is none: leave it out"
        )
    return Credentials(source, _source(source), scheme=scheme)


def _source(source: str) -> Fetch:
    if source.startswith(_FILE):
        return functools.partial(_from_file, Path(source.removeprefix(_FILE)))
    name, _, profile = source.partition(":")
    if name == _BOTO3:
        with needs("aws"):
            import boto3  # noqa: F401
        return functools.partial(_from_boto3, profile or None)
    if source in _registered:
        # Looked up each time: whoever has the credentials of a name has those of its new source.
        return lambda: _registered[source]()
    found = entry_points(group=_ENTRY_POINTS, name=source)
    for entry in found:
        fetch: Fetch = entry.load()
        return fetch
    raise InvalidInputError(
        f"no source of credentials is called {source!r} in this process: use file:/path, boto3, "
        f"memwal.register_credentials({source!r}, ...), or install a package with an entry point "
        f"of this name in the group {_ENTRY_POINTS!r}"
    )


def _profile(options: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    """The source of a profile of AWS; None when there is none, or something goes before it."""
    given = {key.lower() for key in options}
    if given & {name for key, others in NAMES[uris.S3].items() for name in (key, *others)}:
        return None
    if given & {"skip_signature", "aws_skip_signature"}:
        return None
    asked = options.get("aws_profile")
    if asked is not None:
        return f"{_BOTO3}:{asked}"
    if "AWS_ACCESS_KEY_ID" in environment or "AWS_SKIP_SIGNATURE" in environment:
        return None
    if environment.get("AWS_PROFILE"):
        return f"{_BOTO3}:{environment['AWS_PROFILE']}"
    if any(name.startswith(("AWS_WEB_IDENTITY", "AWS_CONTAINER_CRED")) for name in environment):
        return None
    file = environment.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    found = os.path.exists(os.path.expanduser(file)) and find_spec(_BOTO3) is not None
    return _BOTO3 if found else None


def _from_file(path: Path) -> Mapping[str, str]:
    return read_options_file(path)


def _from_boto3(profile: str | None) -> Mapping[str, str]:
    import boto3

    # A session reads its files once, so that each time takes a new one.
    found = boto3.Session(profile_name=profile).get_credentials()
    if found is None:
        raise StoreAccessError("no profile of AWS has credentials; look at ~/.aws")
    keys = found.get_frozen_credentials()
    given = {
        "aws_access_key_id": keys.access_key or "",
        "aws_secret_access_key": keys.secret_key or "",
        "aws_session_token": keys.token or "",
    }
    end = getattr(found, "_expiry_time", None)
    if end is not None:
        given[EXPIRES] = str(int(end.timestamp() * 1000))
    return given
