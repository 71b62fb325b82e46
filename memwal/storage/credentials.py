"""Storage credentials: their sources, and renewal before they expire.

A storage option names the source (an AWS profile, a file, a registered name); without it, the
environment is searched. Options can be read from a JSON file, to keep secrets off command lines.
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
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from memwal.boundary.public import public
from memwal.errors import InvalidInputError, MemWalError, StoreAccessError
from memwal.storage import uris
from memwal.util.optional_deps import requires_extra
from memwal.util.safe_json import read_json

logger = logging.getLogger(__name__)

Fetch = Callable[[], Mapping[str, str]]
"""Returns storage options with credentials and, optionally, their expiry: ``expires_at_millis``."""

CREDENTIALS_FROM: Final = "memwal_credentials_from"
"""Storage option that names the source of credentials: ``file:/path``, ``boto3``,
``boto3:profile``, or a name that is registered or an entry point."""

EXPIRES: Final = "expires_at_millis"

# Storage options with credentials, by cloud: Lance's preferred name, and the other names it knows.
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

_REFRESH_OFFSET: Final = "refresh_offset_millis"

# Time before the expiry at which credentials are renewed; at half of a shorter lifetime.
_MARGIN_SECONDS = 300.0

# Credentials without an expiry are renewed after this time; they count as valid twice as long.
_UNKNOWN_SECONDS = 60.0

# Time before the next call of a source that failed while its last credentials are still valid.
_PAUSE_SECONDS = 5.0

_ENTRY_POINTS: Final = "memwal.credentials"
_FILE: Final = "file:"
_BOTO3: Final = "boto3"
_NAME = re.compile(r"[A-Za-z0-9_.-]+")

# Storage options with long-lived secrets, which the client exchanges for new tokens as needed.
_LONG_LIVED = frozenset(
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

# Prefixes of environment variables with credentials, in the order in which they are searched.
_VARIABLES: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    uris.S3: (
        ("from the environment, never renewed", ("AWS_ACCESS_KEY_ID",)),
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


@dataclass(frozen=True, slots=True)
class CachedCredentials:
    """Credentials with the times of their renewal and expiry."""

    options: Mapping[str, str] = field(repr=False)  # Storage options, under Lance's names.
    renew_at: float  # This and the next in seconds since 1970.
    expires_at: float

    def for_lance(self) -> dict[str, str]:
        """Return storage options that also tell Lance when to renew them."""
        return {
            **self.options,
            EXPIRES: str(int(self.expires_at * 1000)),
            _REFRESH_OFFSET: str(int((self.expires_at - self.renew_at) * 1000)),
        }


class Credentials:
    """Credentials of one source for one kind of store, renewed before they expire.

    Thread-safe: one thread fetches while the others wait. Iterating yields the current secrets.
    """

    def __init__(
        self, source: str, fetch: Fetch, *, scheme: str, clock: Callable[[], float] = time.time
    ) -> None:
        self.source = source
        self._fetch = fetch
        self._scheme = scheme
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: CachedCredentials | None = None

    def current(self) -> CachedCredentials:
        """Return the credentials, after renewing them if they expire soon.

        If the source fails while its last credentials are still valid, these are returned, and the
        source is called again later. StoreAccessError is raised if it failed, or returned no valid
        credentials, and there are none left.
        """
        cached = self._cached
        if cached is not None and self._clock() < cached.renew_at:
            return cached
        with self._lock:
            cached = self._cached
            if cached is None or self._clock() >= cached.renew_at:
                cached = self._cached = self._renew(cached)
            return cached

    def __iter__(self) -> Iterator[str]:
        cached = self._cached
        return iter(cached.options.values() if cached is not None else ())

    def _renew(self, before: CachedCredentials | None) -> CachedCredentials:
        fetched_at = self._clock()
        try:
            return self._parse(self._fetch(), fetched_at)
        except Exception as error:
            # A callable of the user can raise anything, and the text may contain a secret.
            reason = str(error) if isinstance(error, MemWalError) else type(error).__name__
            if before is not None and self._clock() < before.expires_at:
                logger.warning(
                    "the credentials source %s failed, and is called again: %s",
                    self.source,
                    reason,
                )
                return CachedCredentials(
                    before.options, self._clock() + _PAUSE_SECONDS, before.expires_at
                )
            raise StoreAccessError(
                f"the credentials source {self.source!r} gave none: {reason}; see to it, then try "
                "again"
            ) from None

    def _parse(self, fetched: Mapping[str, str], fetched_at: float) -> CachedCredentials:
        lowered = {key.lower(): value for key, value in fetched.items()}
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
                options, fetched_at + _UNKNOWN_SECONDS, fetched_at + 2 * _UNKNOWN_SECONDS
            )
        if not str(end).isdecimal():
            raise InvalidInputError(f"{EXPIRES} must be a whole number of milliseconds since 1970")
        expires_at = int(end) / 1000
        lifetime = expires_at - fetched_at
        if lifetime <= 0:
            raise StoreAccessError("its credentials have expired already; check both clocks")
        return CachedCredentials(
            options, expires_at - min(_MARGIN_SECONDS, lifetime / 2), expires_at
        )


@public
def register_credentials(name: str, fetch: Fetch) -> None:
    """Register a source of credentials by name, for the option ``memwal_credentials_from``.

    The name is valid in this process only. For other processes, such as Spark's executors, install
    a package there that has an entry point of this name in the group ``memwal.credentials``.

    Parameters
    ----------
    name : str
        Letters, digits, ``_``, ``.`` and ``-``. Registering a name again replaces its source; open
        tables use the new one from their next renewal on.
    fetch : callable
        Takes no arguments and returns storage options: ``aws_access_key_id``,
        ``aws_secret_access_key``, ``aws_session_token``; ``google_storage_token``;
        ``azure_storage_sas_token``, ``azure_storage_token`` or ``azure_storage_account_key``. If it
        returns ``expires_at_millis`` (text, milliseconds since 1970), it is called again five
        minutes before that, or at half of a shorter lifetime; otherwise every minute. Called from
        any thread, one at a time.

    Raises
    ------
    InvalidInputError
        The name is invalid or reserved by memwal.
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
    """Return the credentials of the source that storage options name.

    boto3 reads AWS profiles, which obstore does not: the one in the option ``aws_profile`` or in
    ``$AWS_PROFILE``, or the default one if the credentials file exists. Returns None if the options
    hold the credentials themselves, or obstore finds them. InvalidInputError is raised for a source
    that is unknown in this process.
    """
    source = options.get(CREDENTIALS_FROM)
    if source is None and scheme == uris.S3:
        source = _aws_profile_source(options, environment)
    return None if source is None else cached_credentials(source, scheme)


def describe_credentials(
    scheme: str, options: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> str:
    """Describe where the credentials of storage options come from, without showing a value."""
    if scheme not in NAMES:
        return "none are needed"
    credentials = credentials_for(scheme, options, environment)
    if credentials is not None:
        return f"from the source {credentials.source!r}, renewed before they expire"
    keys = {key.lower() for key in options}
    fixed, long_lived = keys & _option_names(scheme), keys & _LONG_LIVED
    if fixed:
        return f"from the storage options ({', '.join(sorted(fixed))}), never renewed"
    if long_lived:
        return f"from the storage options ({', '.join(sorted(long_lived))}), which do not expire"
    if any("skip_signature" in key for key in keys):
        return "none: requests are not signed (skip_signature)"
    for what, prefixes in _VARIABLES[scheme]:
        variables = sorted(name for name in environment if name.startswith(prefixes))
        if variables:
            return f"{what} ({', '.join(variables)})"
    return "of the machine, from its instance metadata"


@functools.lru_cache(maxsize=512)
def cached_credentials(source: str, scheme: str) -> Credentials:
    """Return the credentials of a source, shared by all stores of this process."""
    if scheme not in NAMES:
        raise InvalidInputError(
            f"{CREDENTIALS_FROM} is for object stores, and {scheme} is none: leave it out"
        )
    return Credentials(source, _resolve_source(source), scheme=scheme)


def read_options_file(path: Path) -> dict[str, str]:
    """Read storage options from a JSON file with one flat object. No message shows its content."""
    try:
        options = read_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInputError(
            f"cannot read the storage options in {path}: {error.strerror}"
        ) from error
    except ValueError:
        # "from None": the message of the parser quotes the file.
        raise InvalidInputError(f"the storage options in {path} are not JSON") from None
    return parse_options(options, f"the storage options in {path}")


def parse_options(content: object, what: str) -> dict[str, str]:
    """Return storage options from a parsed JSON document; numbers and booleans become text.

    Messages call the document ``what``, and show none of its content.
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


def _option_names(scheme: str) -> set[str]:
    return {name for key, others in NAMES[scheme].items() for name in (key, *others)}


def _resolve_source(source: str) -> Fetch:
    if source.startswith(_FILE):
        return functools.partial(read_options_file, Path(source.removeprefix(_FILE)))
    name, _, profile = source.partition(":")
    if name == _BOTO3:
        with requires_extra("aws"):
            import boto3  # noqa: F401
        return functools.partial(_fetch_from_boto3, profile or None)
    if source in _registered:
        # Looked up for each call, so that a name that is registered again uses its new source.
        return lambda: _registered[source]()
    from importlib.metadata import entry_points

    for entry in entry_points(group=_ENTRY_POINTS, name=source):
        fetch: Fetch = entry.load()
        return fetch
    raise InvalidInputError(
        f"no source of credentials is called {source!r} in this process: use file:/path, boto3, "
        f"memwal.register_credentials({source!r}, ...), or install a package with an entry point "
        f"of this name in the group {_ENTRY_POINTS!r}"
    )


def _aws_profile_source(options: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    """Return the source of an AWS profile; None if there is none, or another source precedes it."""
    keys = {key.lower() for key in options}
    if keys & (_option_names(uris.S3) | {"skip_signature", "aws_skip_signature"}):
        return None
    profile = options.get("aws_profile")
    if profile is not None:
        return f"{_BOTO3}:{profile}"
    if "AWS_ACCESS_KEY_ID" in environment or "AWS_SKIP_SIGNATURE" in environment:
        return None
    if environment.get("AWS_PROFILE"):
        return f"{_BOTO3}:{environment['AWS_PROFILE']}"
    if any(name.startswith(("AWS_WEB_IDENTITY", "AWS_CONTAINER_CRED")) for name in environment):
        return None
    file = environment.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    has_profiles = os.path.exists(os.path.expanduser(file)) and find_spec(_BOTO3) is not None
    return _BOTO3 if has_profiles else None


def _fetch_from_boto3(profile: str | None) -> Mapping[str, str]:
    import boto3

    # A session reads the files only once, so each fetch makes a new session.
    credentials = boto3.Session(profile_name=profile).get_credentials()
    if credentials is None:
        raise StoreAccessError("no profile of AWS has credentials; look at ~/.aws")
    keys = credentials.get_frozen_credentials()
    options = {
        "aws_access_key_id": keys.access_key or "",
        "aws_secret_access_key": keys.secret_key or "",
        "aws_session_token": keys.token or "",
    }
    expiry = getattr(credentials, "_expiry_time", None)
    if expiry is not None:
        options[EXPIRES] = str(int(expiry.timestamp() * 1000))
    return options
