"""Text that is safe to log: errors, storage options; warnings that are logged once per process."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from memwal.errors import MemWalError

_MAX_LENGTH = 400
_MAX_LOGGED = 10_000
_logged: set[tuple[str, str]] = set()
_lock = threading.Lock()


def safe_error_text(error: BaseException, *, secrets: Iterable[str] = ()) -> str:
    """Return the type and the first line of an error, without secrets and without data.

    Only messages of this library and of the operating system are included: those of Arrow and
    Lance may quote a row's value. ``secrets`` are blanked out, in their order: longest first, as
    :func:`memwal.util.log.secret_values` returns them.
    """
    kind = type(error).__name__
    if isinstance(error, MemWalError):
        text = str(error)
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror
    else:
        return kind
    for secret in secrets:
        text = text.replace(secret, "***")
    return f"{kind}: {text.partition(chr(10))[0][:_MAX_LENGTH]}"


def warn_once(logger: logging.Logger, message: str, *args: str) -> None:
    """Log a warning, with ``%s`` for each argument, unless this process has logged the same one."""
    key = message, "\0".join(args)
    with _lock:
        if key in _logged:
            return
        if len(_logged) >= _MAX_LOGGED:
            _logged.clear()
        _logged.add(key)
    logger.warning(message, *args)


# Options whose values may be shown. Every other value is redacted: an option that is not listed
# may hold a secret.
_PUBLIC_OPTION = re.compile(
    r"(aws_|google_|azure_|azure_storage_)?("
    r"region|default_region|endpoint|endpoint_url|endpoint_url_s3|account_name|"
    r"virtual_hosted_style_request|s3_express|unsigned_payload|skip_signature|conditional_put|"
    r"checksum_algorithm|server_side_encryption|disable_bulk_delete|disable_tagging|"
    r"use_emulator|use_fabric_endpoint|allow_http|allow_invalid_certificates|"
    r"connect_timeout|timeout|read_timeout|client_max_retries|client_retry_timeout|"
    r"download_retry_count|user_agent|profile|role_arn|role_session_name|"
    r"memwal_commits_in|memwal_credentials_from)"
)
_REDACTED = "***"
# S3 and Azure repeat the request that they refuse, with its token, in their response.
_RESPONSE = re.compile(r"<(?:\?xml|Error)\b(?:.*</Error>|.*)", re.DOTALL)
_CODE = re.compile(r"<Code>(\w+)</Code>")
_PASSWORD = re.compile(r"(?<=//)[^/@\s]*@")
# Shorter values would blank out ordinary words of a message.
_MIN_SECRET_LENGTH = 6
_CLOUD_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")


def redact(options: Mapping[str, str]) -> dict[str, str]:
    """Return storage options that are safe to show.

    Every value that is not known to be public becomes ``***``; a password in an endpoint is cut
    out.
    """
    return {
        key: _PASSWORD.sub("", value) if _is_public(key) else _REDACTED
        for key, value in options.items()
    }


def secret_values(options: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of options and cloud variables that no message may contain."""
    variables = {k: v for k, v in environment.items() if k.startswith(_CLOUD_VARIABLES)}
    values = {
        value
        for pairs in (options, variables)
        for key, value in pairs.items()
        if not _is_public(key) and len(value) >= _MIN_SECRET_LENGTH
    }
    # A secret that contains another one is replaced first.
    return tuple(sorted(values, key=len, reverse=True))


class Secrets:
    """Secret values of several sources, each of which is iterated anew every time."""

    def __init__(self, *sources: Iterable[str]) -> None:
        self._sources = sources

    def __iter__(self) -> Iterator[str]:
        return chain(*self._sources)


def redact_store_response(error: BaseException) -> None:
    """Cut a store's response out of an error of Lance, except the error code.

    The error is changed in place, since tracebacks show it as the cause of the error that is
    raised instead.
    """
    error.args = tuple(
        _RESPONSE.sub(_error_code, value) if isinstance(value, str) else value
        for value in error.args
    )


def _error_code(response: re.Match[str]) -> str:
    code = _CODE.search(response[0])
    return code[1] if code else _REDACTED


def _is_public(key: str) -> bool:
    return _PUBLIC_OPTION.fullmatch(key.lower()) is not None
