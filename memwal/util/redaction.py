"""Redaction of secrets in logs, messages and storage options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

# What may be shown. Anything else is hidden: a name that is not known may hold a secret.
_HARMLESS = re.compile(
    r"(aws_|google_|azure_|azure_storage_)?("
    r"region|default_region|endpoint|endpoint_url|endpoint_url_s3|account_name|"
    r"virtual_hosted_style_request|s3_express|unsigned_payload|skip_signature|conditional_put|"
    r"checksum_algorithm|server_side_encryption|disable_bulk_delete|disable_tagging|"
    r"use_emulator|use_fabric_endpoint|allow_http|allow_invalid_certificates|"
    r"connect_timeout|timeout|read_timeout|client_max_retries|client_retry_timeout|"
    r"download_retry_count|user_agent|profile|role_arn|role_session_name|"
    r"memwal_commits_in|memwal_credentials_from)"
)
_HIDDEN = "***"
# S3 and Azure repeat the request that they refuse, with its token, in what they answer.
_ANSWER = re.compile(r"<(?:\?xml|Error)\b(?:.*</Error>|.*)", re.DOTALL)
_CODE = re.compile(r"<Code>(\w+)</Code>")
_PASSWORD = re.compile(r"(?<=//)[^/@\s]*@")
# Shorter values would blank out ordinary words of a message.
_SHORTEST_SECRET = 6
_CLOUD_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")


def redact(options: Mapping[str, str]) -> dict[str, str]:
    """Return storage options that may be shown: every value that is not known to be harmless is
    replaced by ``***``, as is a password inside an endpoint."""
    return {
        key: _PASSWORD.sub("", value) if _is_harmless(key) else _HIDDEN
        for key, value in options.items()
    }


def secret_values(options: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values that no message may repeat, of options and of a cloud's variables."""
    variables = {k: v for k, v in environment.items() if k.startswith(_CLOUD_VARIABLES)}
    values = {
        value
        for pairs in (options, variables)
        for key, value in pairs.items()
        if not _is_harmless(key) and len(value) >= _SHORTEST_SECRET
    }
    # A secret that contains another one goes first.
    return tuple(sorted(values, key=len, reverse=True))


class Secrets:
    """Values that no message may repeat, of several origins; each is asked anew."""

    def __init__(self, *origins: Iterable[str]) -> None:
        self._origins = origins

    def __iter__(self) -> Iterator[str]:
        return chain(*self._origins)


def hide_answer(error: BaseException) -> None:
    """Cut out of an error of Lance what a store answered, but for its code.

    The error is changed, since it is shown in tracebacks as the cause of what is raised instead.
    """
    error.args = tuple(
        _ANSWER.sub(_code, value) if isinstance(value, str) else value for value in error.args
    )


def _code(answer: re.Match[str]) -> str:
    found = _CODE.search(answer[0])
    return found[1] if found else _HIDDEN


def _is_harmless(key: str) -> bool:
    return _HARMLESS.fullmatch(key.lower()) is not None
