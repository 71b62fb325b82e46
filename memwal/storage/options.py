"""Translation of Lance's storage options into obstore's settings."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, S3Store

from memwal.errors import InvalidInputError

logger = logging.getLogger(__name__)

# Any: obstore's types accept only options that are known to the type checker.
CLOUDS: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore, "abfss": AzureStore}

# Settings of the HTTP client, which obstore takes separately from those of the store.
_CLIENT = frozenset(
    {
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
# Options that only Lance has, by the names in its documentation and its code.
_OF_LANCE = frozenset(
    {
        "aws_profile",
        "aws_provider_scheme",
        "client_max_retries",
        "client_retry_timeout",
        "download_retry_count",
        "expires_at_millis",
        "io_parallelism",
        "refresh_offset_millis",
        "request_timeout",
        "s3_express",
        "use_opendal",
    }
)
# Prefixes of memwal's own options, and of options with which LanceDB makes tables.
_OTHER_PREFIXES = ("memwal_", "new_table_")
# Taken from the address of the table instead.
_FROM_ADDRESS = ("bucket", "bucket_name", "container_name")
# Options for which obstore has another name than Lance.
_RENAMED = {("gs", "google_storage_token"): "bearer_token"}
_HEADER = "headers."
_HTTP_VARIABLES = ("AZURE_STORAGE_ALLOW_HTTP", "AZURE_STORAGE_USE_HTTP", "AWS_ALLOW_HTTP")
_NUMBER = re.compile(r"[0-9]{1,9}")
_TRUE = frozenset({"1", "true", "on", "yes", "y"})
# Lance's defaults. More retries would block a writer for minutes.
_MAX_RETRIES = 3
_RETRY_SECONDS = 180


@dataclass(frozen=True, slots=True)
class CloudSettings:
    """Settings for the client of one bucket."""

    # Settings of the store: credentials, region, endpoint.
    config: dict[str, str] = field(repr=False)
    client: dict[str, str | dict[str, str]] = field(repr=False)  # Settings of the HTTP client.
    max_retries: int  # Of a request, after a 5xx or a broken connection.
    retry_timeout: timedelta  # No request is retried after this time.


def cloud_settings(
    scheme: str,
    options: Mapping[str, str],
    environment: Mapping[str, str] = os.environ,
) -> CloudSettings:
    """Divide storage options into settings of the store and of the HTTP client, as Lance does.

    Options that only Lance knows are ignored. So are options that neither knows, as Lance does; a
    warning names them, since a credential with a misspelled name would be missing without a word.
    obstore itself takes missing credentials, region and endpoint from the environment.
    ``OBJECT_STORE_CLIENT_MAX_RETRIES``, ``OBJECT_STORE_CLIENT_RETRY_TIMEOUT`` and the
    ``..._ALLOW_HTTP`` variables override options, as in Lance.
    """
    merged = {key.lower(): value for key, value in options.items()}
    merged |= {
        "client_" + name: environment[variable]
        for name in ("max_retries", "retry_timeout")
        if (variable := f"OBJECT_STORE_CLIENT_{name.upper()}") in environment
    }
    for name in _HTTP_VARIABLES:
        if name in environment:
            merged["allow_http"] = environment[name]
    config: dict[str, str] = {}
    client: dict[str, str | dict[str, str]] = {}
    headers: dict[str, str] = {}
    unknown: list[str] = []
    for key, value in merged.items():
        if key.startswith(_HEADER):
            headers[key.removeprefix(_HEADER)] = value
        elif key in _CLIENT:
            client[key] = value
        elif "allow_http" in key or key.endswith(_FROM_ADDRESS):
            continue
        elif _is_store_option(scheme, name := _RENAMED.get((scheme, key), key)):
            config[name] = value
        elif not _is_known(key):
            unknown.append(key)
    if unknown:
        logger.warning(
            "neither Lance nor memwal knows the storage option %s; check its name",
            ", ".join(sorted(map(repr, unknown))),
        )
    if any("allow_http" in key and value.strip().lower() in _TRUE for key, value in merged.items()):
        client["allow_http"] = "true"
    if headers:
        client["default_headers"] = headers
    return CloudSettings(
        config,
        client,
        _parse_number(merged, "client_max_retries", _MAX_RETRIES),
        timedelta(seconds=_parse_number(merged, "client_retry_timeout", _RETRY_SECONDS)),
    )


def _is_known(key: str) -> bool:
    """Return whether an option that a store does not take is one of Lance, or of other stores."""
    if key in _OF_LANCE or key.startswith(_OTHER_PREFIXES):
        return True
    return any(_is_store_option(s, _RENAMED.get((s, key), key)) for s in CLOUDS)


@functools.lru_cache(maxsize=1024)
def _is_store_option(scheme: str, key: str) -> bool:
    # obstore has no list of its keys, but raises UnknownConfigurationKeyError for an unknown one.
    # Any other error is about the value.
    try:
        CLOUDS[scheme]("probe", config={key: "x"})
    except UnknownConfigurationKeyError:
        return False
    except (BaseError, ValueError):
        return True
    return True


def _parse_number(options: Mapping[str, str], key: str, default: int) -> int:
    text = options.get(key, str(default))
    if not _NUMBER.fullmatch(text):
        raise InvalidInputError(
            f"the storage option {key} must be a whole number: give one, or leave it out for "
            f"{default}"
        )
    return int(text)
