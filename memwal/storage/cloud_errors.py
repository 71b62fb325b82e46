"""What an error of obstore means to the caller.

Only the status, the code and the message of the server, or the first line of the client, are
taken over: the rest of obstore's text is a dump of its inner state.
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

# Everything that obstore raises.
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
# Asking a cloud who this machine is failed: obstore's last resort for credentials.
_NO_CREDENTIALS = re.compile(
    r"performing \w+ https?://(169\.254\.|metadata\.google|sts\.)|token request:|credential error:"
)
# Why a request got no answer, as the client's dump has it, and what to do.
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
# Answers that the client does not send a request again for.
_REFUSED = (StoreAccessError, TableSetupError, ObjectNotFoundError, InvalidInputError)
_DUMP = "\n\nDebug source"
_LONGEST = 300


# What has to be allowed for what is tried; see memwal.permissions.
_ACTS = {
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
    """Tell whether the request was sent more than once, so that its first try may have worked."""
    return _RETRIED.search(str(error)) is not None


@contextmanager
def translate_errors(
    action: str, what: str, *, secrets: Iterable[str] = (), writes: bool = False
) -> Iterator[None]:
    """Raise errors of memwal for those of obstore.

    Parameters
    ----------
    action : str
        What is tried; it completes "cannot ... the object".
    what : str
        The object or the table.
    secrets : iterable of str
        Never repeated in a message, whatever the store says.
    writes : bool, default False
        Whether the request changes something. When a repeated one is refused outright, the first
        may have done its work all the same: that is an unknown outcome.
    """
    try:
        yield
    except OBSTORE_ERRORS as error:
        meant = from_obstore_error(error, action, what, secrets=secrets)
        if writes and was_retried(error) and isinstance(meant, _REFUSED):
            meant = StoreUnavailableError(f"{meant}; an earlier try may have been carried out")
        # The original holds the dump; a traceback must not show it.
        raise meant from None


def from_obstore_error(
    error: Exception, action: str, what: str, *, secrets: Iterable[str] = ()
) -> MemWalError:
    """Return the error to raise for a failed call of obstore; see :func:`translated`."""
    text, _, dump = str(error).partition(_DUMP)
    status = _first(_STATUS, text)
    code = _first(_CODE, text)
    message = _first(_MESSAGE, text)
    if status:
        said = " ".join(filter(None, (f"HTTP {status}", code, message)))
    else:
        cause = _first(_CAUSE, dump)
        said = text.rpartition(" - ")[2] + (f" ({cause})" if cause else "")
    kind, advice = _meaning(error, text + dump, status, code, message, action)
    # What to do is never cut off; what a store said may be a page of a proxy.
    return kind(f"{_clean(f'cannot {action} {what}: {said}', secrets)}; {advice}")


def invalid_options_error(
    error: Exception, what: str, *, secrets: Iterable[str]
) -> InvalidInputError:
    """Return the error to raise when obstore does not make a client of the options."""
    said = str(error).partition(_DUMP)[0]
    advice = "correct the storage_options or the environment variables of the store"
    return InvalidInputError(_clean(f"cannot open {what}: {said}; {advice}", secrets))


def _meaning(
    error: Exception, text: str, status: str, code: str, message: str, action: str
) -> tuple[type[MemWalError], str]:
    if code in _FULL or status == "507":
        return StoreFullError, "free space or raise the quota, then try again"
    if (
        isinstance(error, (PermissionDeniedError, UnauthenticatedError))
        or code in _ACCESS
        or status in ("401", "403")
        # The answer to a HEAD has no code; an expired token is what S3 says 400 to.
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
    again = "a read may be tried again; after a write, look first"
    return StoreUnavailableError, next((a for cause, a in _NO_ANSWER if cause.search(text)), again)


def _access_advice(code: str, action: str) -> str:
    act = _ACTS.get(action, "do that")
    if code == _SKEWED:
        return "set the clock of this machine, which differs too much from that of the store"
    if code in _ENDED:
        return (
            "check the credentials in storage_options or the environment: these have ended; "
            "memwal_credentials_from names a source that is asked for new ones"
        )
    if code in _DENIED:
        return (
            f"check the credentials: they lack the right to {act} there; memwal rights tells what "
            "each role needs"
        )
    return (
        "check the credentials in storage_options or the environment, and that they may "
        f"{act} there; memwal rights tells what each role needs"
    )


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return next(filter(None, found.groups()), "") if found else ""


def _clean(message: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        message = message.replace(secret, "***")
    # A query can hold a signature, and what stands before an '@' a password.
    message = re.sub(r"(\w+://[^\s?]*)\?\S*", r"\1", message)
    message = re.sub(r"(https?://)[^/@\s]*@", r"\1", message)
    message = " ".join(message.split())
    return message if len(message) <= _LONGEST else message[: _LONGEST - 3] + "..."
