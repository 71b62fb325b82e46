"""Storage credentials: their sources, and renewal before they expire.

A source is named by a storage option (a profile of AWS, a file, a registered name) or found in the
environment. Options can be read from a JSON file, which keeps secrets off command lines.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from memwal.errors import InvalidInputError, MemWalError, StoreAccessError
from memwal.storage import uris
from memwal.util.optional_deps import needs
from memwal.util.safe_json import read_json

logger = logging.getLogger(__name__)

Fetch = Callable[[], Mapping[str, str]]
"""Returns storage options with credentials, and when they end: ``expires_at_millis``."""

EXPIRES: Final = "expires_at_millis"
_REFRESH_OFFSET: Final = "refresh_offset_millis"
# What the credentials of each cloud are called, the name that Lance knows first.
_S3 = {
    "aws_access_key_id": ("access_key_id",),
    "aws_secret_access_key": ("secret_access_key",),
    "aws_session_token": ("aws_token", "session_token", "token"),
}
_GCS = {"google_storage_token": ("bearer_token", "token")}
_AZURE = {
    "azure_storage_account_key": (
        "azure_storage_access_key",
        "azure_storage_master_key",
        "account_key",
        "access_key",
        "master_key",
    ),
    "azure_storage_sas_token": ("azure_storage_sas_key", "sas_token", "sas_key"),
    "azure_storage_token": ("bearer_token", "token"),
}
NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    uris.S3: _S3,
    uris.GCS: _GCS,
    **dict.fromkeys(uris.AZURE, _AZURE),
}

# Renewed so long before they end, or at half of a shorter life.
_MARGIN_SECONDS = 300.0
# How long credentials of which nobody knows the end are taken as good.
_UNKNOWN_SECONDS = 60.0
# Pause after a source that failed while what it gave before is still good.
_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CachedCredentials:
    """Credentials and how long they are good.

    Attributes
    ----------
    options : mapping of str to str
        Under the names that Lance has for them.
    renew_at, expires_at : float
        Seconds since 1970.
    """

    options: Mapping[str, str] = field(repr=False)
    renew_at: float
    expires_at: float

    def for_lance(self) -> dict[str, str]:
        """As storage options that tell Lance when to ask again."""
        return {
            **self.options,
            EXPIRES: str(int(self.expires_at * 1000)),
            _REFRESH_OFFSET: str(int((self.expires_at - self.renew_at) * 1000)),
        }


class Credentials:
    """The credentials of one source for one kind of store.

    May be asked from many threads; one of them fetches. Iterating gives the secrets of now.

    Parameters
    ----------
    source : str
        Its name, for messages.
    fetch : callable
        Gives them.
    scheme : str
        Of the addresses that they are for.
    clock : callable, default time.time
    """

    def __init__(
        self, source: str, fetch: Fetch, *, scheme: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.source = source
        self._fetch = fetch
        self._scheme = scheme
        self._clock = clock
        self._lock = threading.Lock()
        self._held: CachedCredentials | None = None

    def current(self) -> CachedCredentials:
        """The credentials, fetched anew when they are about to end.

        A source that fails is asked again later, as long as what it gave before is good.

        Raises
        ------
        StoreAccessError
            The source failed, or gave none that are good.
        """
        held = self._held
        if held is not None and self._clock() < held.renew_at:
            return held
        with self._lock:
            held = self._held
            if held is None or self._clock() >= held.renew_at:
                held = self._held = self._renewed(held)
            return held

    def __iter__(self) -> Iterator[str]:
        held = self._held
        return iter(held.options.values() if held is not None else ())

    def _renewed(self, before: CachedCredentials | None) -> CachedCredentials:
        asked = self._clock()
        try:
            return self._taken(self._fetch(), asked)
        except Exception as error:
            # Anything can come out of a callable of the user; its text may hold a secret.
            reason = str(error) if isinstance(error, MemWalError) else type(error).__name__
            if before is not None and self._clock() < before.expires_at:
                logger.warning(
                    "the credentials source %s failed, and is asked again: %s", self.source, reason
                )
                return CachedCredentials(
                    before.options, self._clock() + _PAUSE_SECONDS, before.expires_at
                )
            raise StoreAccessError(
                f"the credentials source {self.source!r} gave none: {reason}; see to it, then try "
                "again"
            ) from None

    def _taken(self, given: Mapping[str, str], asked: float) -> CachedCredentials:
        lowered = {key.lower(): value for key, value in given.items()}
        options = {
            name: str(value)
            for name, others in NAMES[self._scheme].items()
            if (value := next(filter(None, map(lowered.get, (name, *others))), None))
        }
        if not options:
            raise InvalidInputError(
                f"it must return storage options such as {', '.join(NAMES[self._scheme])}"
            )
        end = lowered.get(EXPIRES)
        if end is None:
            return CachedCredentials(
                options, asked + _UNKNOWN_SECONDS, asked + 2 * _UNKNOWN_SECONDS
            )
        if not str(end).isdecimal():
            raise InvalidInputError(f"{EXPIRES} must be a whole number of milliseconds since 1970")
        expires_at = int(end) / 1000
        life = expires_at - asked
        if life <= 0:
            raise StoreAccessError("what it gave has ended already; look at both clocks")
        return CachedCredentials(options, expires_at - min(_MARGIN_SECONDS, life / 2), expires_at)


def read_options_file(path: Path) -> dict[str, str]:
    """Read storage options from a JSON file with one flat object.

    No message repeats what the file holds.

    Raises
    ------
    InvalidInputError
        The file cannot be read or holds something else.
    """
    try:
        options = read_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(
            f"cannot read the storage options in {path}: {error.strerror}"
        ) from error
    except ValueError:
        # The message of the parser quotes the file; so would the cause.
        raise InvalidInputError(f"the storage options in {path} are not JSON") from None
    return parse_options(options, f"the storage options in {path}")


def parse_options(content: Any, what: str) -> dict[str, str]:
    """Storage options from what a JSON document holds; numbers and booleans become text.

    Raises
    ------
    InvalidInputError
        It is not one flat object. The message calls it ``what`` and shows nothing of it.
    """
    if not isinstance(content, dict) or any(
        isinstance(value, dict | list) or value is None for value in content.values()
    ):
        raise InvalidInputError(
            f"{what} must be one JSON object whose values are text: "
            '{"aws_region": "eu-central-1", "allow_http": "true"}'
        )
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in content.items()
    }


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
