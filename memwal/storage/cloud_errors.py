"""Translation of obstore's errors into memwal's.

Messages take over the status, code and message of the server, or the first line of the client. The
rest of obstore's text is a dump of its internal state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from memwal.errors import (
    InvalidInputError,
    MemWalError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
    TableSetupError,
    UnsupportedStoreError,
)

# Every type of error that obstore raises.
OBSTORE_ERRORS = (BaseError, OSError, ValueError, NotImplementedError)

_ACCESS = frozenset(
    {
        "AccessDenied",
        "AuthenticationFailed",
        "AuthorizationFailure",
        "AuthorizationPermissionMismatch",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidSecurity",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)

_DENIED = frozenset({"AccessDenied", "AuthorizationPermissionMismatch", "forbidden"})
_SKEWED = "RequestTimeTooSkewed"
_ENDED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_FULL = frozenset({"QuotaExceeded", "ServiceQuotaExceeded", "XMinioStorageFull"})
_NO_BUCKET = frozenset({"ContainerNotFound", "NoSuchBucket"})
_ELSEWHERE = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"}
)
_INPUT = frozenset({"EntityTooLarge", "InvalidBucketName", "KeyTooLongError"})

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]*)</Code>|\"reason\"\s*:\s*\"([^\"]*)\"|\(code: ([^)]*)\)")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>|\"message\"\s*:\s*\"([^\"]*)\"", re.DOTALL)
_CAUSE = re.compile(r"message: \"([^\"]+)\"")
_RETRIED = re.compile(r"after [1-9]\d* retries")
# The request to the cloud's metadata service failed: obstore's last source of credentials.
_NO_CREDENTIALS = re.compile(
    r"performing \w+ https?://(169\.254\.|metadata\.google|sts\.)|token request:|credential error:"
)
# Patterns in the client's dump for why a request got no answer, and the advice for each.
_NO_ANSWER = (
    (
        re.compile(r"dns error|failed to lookup address"),
        "the host has no address: check the endpoint and the name service; nothing was sent",
    ),
    (
        re.compile(r"Connection refused"),
        "nothing listens there: check the endpoint and its port; nothing was sent",
    ),
    (
        re.compile(r"InvalidCertificate"),
        "the certificate of the server is not trusted: add its authority to those of the system; "
        "nothing was sent",
    ),
    (
        re.compile(r"InvalidContentType|InvalidMessage"),
        "the server does not speak TLS: write http:// and allow_http, or another port; nothing was "
        "sent",
    ),
    (
        re.compile(r"kind: Timeout|TimedOut"),
        "no answer came in time: look at the store and the way to it, or raise the option timeout "
        "(30 s); a read may be tried again; after a write, look first",
    ),
)

_THROTTLED = frozenset({"429", "503"})
# After these answers the client does not retry a request.
_REFUSED = (StoreAccessError, TableSetupError, ObjectNotFoundError, InvalidInputError)
_DUMP = "\n\nDebug source"
_MAX_LENGTH = 300


# The permission that each action needs; see memwal.permissions.
_NEEDED_PERMISSIONS = {
    "create": "put objects",
    "store": "put objects",
    "replace": "get and put objects",
    "read": "get objects",
    "look at": "get objects",
    "list": "list the bucket",
    "delete": "delete objects",
    "delete objects below": "delete objects",
}


def was_retried(error: Exception) -> bool:
    """Return whether the client sent the request more than once: the first may have succeeded."""
    return _RETRIED.search(str(error)) is not None


@contextmanager
def translate_errors(
    action: str, what: str, *, secrets: Iterable[str] = (), writes: bool = False
) -> Iterator[None]:
    """Raise memwal errors for obstore's errors in the block.

    ``action`` completes "cannot ... the object", ``what`` names the object or the table, and
    ``secrets`` are never shown, even if the answer of the store has them. If a request that
    ``writes`` was retried and then refused, the first one may have succeeded, so the outcome is
    unknown.
    """
    try:
        yield
    except OBSTORE_ERRORS as error:
        translated = from_obstore_error(error, action, what, secrets=secrets)
        if writes and was_retried(error) and isinstance(translated, _REFUSED):
            translated = StoreUnavailableError(
                f"{translated}; an earlier request may have been carried out"
            )
        # "from None": the original has the dump, which a traceback must not show.
        raise translated from None


def from_obstore_error(
    error: Exception, action: str, what: str, *, secrets: Iterable[str] = ()
) -> MemWalError:
    """Return the memwal error for a failed call of obstore; see :func:`translate_errors`."""
    text, _, dump = str(error).partition(_DUMP)
    status = _first(_STATUS, text)
    code = _first(_CODE, text)
    message = _first(_MESSAGE, text)
    if status:
        reason = " ".join(filter(None, (f"HTTP {status}", code, message)))
    else:
        cause = _first(_CAUSE, dump)
        reason = text.rpartition(" - ")[2] + (f" ({cause})" if cause else "")
    error_type, advice = _classify(error, text + dump, status, code, message, action)
    # The advice is never cut off; the answer of a store may be the long error page of a proxy.
    return error_type(f"{_clean(f'cannot {action} {what}: {reason}', secrets)}; {advice}")


def invalid_options_error(
    error: Exception, what: str, *, secrets: Iterable[str]
) -> InvalidInputError:
    """Return the error for storage options from which obstore cannot make a client."""
    reason = str(error).partition(_DUMP)[0]
    advice = "correct the storage_options or the environment variables of the store"
    return InvalidInputError(_clean(f"cannot open {what}: {reason}; {advice}", secrets))


def _classify(
    error: Exception, text: str, status: str, code: str, message: str, action: str
) -> tuple[type[MemWalError], str]:
    if code in _FULL or status == "507":
        return StoreFullError, "free space or raise the quota, then try again"
    if (
        isinstance(error, (PermissionDeniedError, UnauthenticatedError))
        or code in _ACCESS
        or status in ("401", "403")
        # The answer to a HEAD request has no code; S3 answers 400 to an expired token.
        or (status == "400" and not code)
        or _NO_CREDENTIALS.search(text)
    ):
        return StoreAccessError, _access_advice(code, action)
    if code in _NO_BUCKET or "bucket does not exist" in message:
        return TableSetupError, "create the bucket or container, or correct the address"
    if code in _ELSEWHERE or "configured region" in text:
        return TableSetupError, "the bucket is in another region: set aws_region to it"
    if "BadScheme" in text:
        return TableSetupError, "set allow_http to true when the endpoint is plain http"
    if isinstance(error, FileNotFoundError) or status == "404" or code == "NoSuchKey":
        return ObjectNotFoundError, "no object has this name"
    if isinstance(error, (AlreadyExistsError, PreconditionError)):
        return ObjectExistsError, "read it back to see whose it is"
    if isinstance(error, (NotSupportedError, NotImplementedError)) or status == "501":
        return UnsupportedStoreError, (
            "the store, or its conditional_put setting, lacks what the protocol needs: use one "
            "with conditional puts (If-None-Match)"
        )
    if code in _INPUT or isinstance(error, ValueError):
        return InvalidInputError, "correct the name or the options"
    if status in _THROTTLED:
        return StoreUnavailableError, (
            "the store wants fewer requests: try again later, or raise client_max_retries; after a "
            "write, look first"
        )
    default = "a read may be tried again; after a write, look first"
    return StoreUnavailableError, next(
        (advice for cause, advice in _NO_ANSWER if cause.search(text)), default
    )


def _access_advice(code: str, action: str) -> str:
    needed = _NEEDED_PERMISSIONS.get(action, "do that")
    if code == _SKEWED:
        return "set the clock of this machine, which differs too much from that of the store"
    if code in _ENDED:
        return (
            "check the credentials in storage_options or the environment: these have ended; "
            "memwal_credentials_from names a source that is asked for new ones"
        )
    if code in _DENIED:
        return (
            f"check the credentials: they lack the right to {needed} there; memwal rights tells "
            "what each role needs"
        )
    return (
        "check the credentials in storage_options or the environment, and that they may "
        f"{needed} there; memwal rights tells what each role needs"
    )


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return next(filter(None, match.groups()), "") if match else ""


def _clean(message: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        message = message.replace(secret, "***")
    # A query can contain a signature, and the text before an '@' a password.
    message = re.sub(r"(\w+://[^\s?]*)\?\S*", r"\1", message)
    message = re.sub(r"(https?://)[^/@\s]*@", r"\1", message)
    message = " ".join(message.split())
    return message if len(message) <= _MAX_LENGTH else message[: _MAX_LENGTH - 3] + "..."
