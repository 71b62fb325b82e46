"""Where things are, and what opens them: addresses, options, references, webhooks."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hostile.harness import SECRET, Area, Broken, check_secret, safely
from hostile.values import NASTY, NUMBERS, mutated, one_of_these, texts
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from memwal.catalog import Catalog, database, records
from memwal.catalog.records import check_name, check_storage_options_ref, check_uri
from memwal.errors import MemWalError
from memwal.fleet import alerts
from memwal.fleet.alerts import Webhook, deliver
from memwal.storage import credentials, options, uris
from memwal.storage.credentials import CachedCredentials, Credentials, read_options_file
from memwal.storage.location import TableLocation
from memwal.storage.open import open_store
from memwal.storage.options import cloud_settings
from memwal.storage.uris import LOCAL, MEMORY, parse_uri
from memwal.util.log import redact

_SCHEMES = ("s3", "gs", "az", "abfss", "file", "memory", "S3", "http", "", "s3a", "\0", "1")
_SLASHES = ("://", ":/", ":///", "//", ":\\\\", ":", "/")
_PARTS = (
    *(
        "bucket",
        "b/t.lance",
        "..",
        ".",
        "%2e%2e",
        "%252e",
        "%00",
        "%ff",
        "[",
        "[::1]",
        ":0",
        "?a=b",
    ),
    *(
        "#f",
        "//",
        "/",
        " ",
        "\n",
        "@",
        ":",
        "\\",
        "~",
        "caf\u00e9",
        "a" * 300,
        "%2F",
        "%",
        "\udcff",
    ),
)


def addresses() -> SearchStrategy[str]:
    """Addresses that are nearly right."""
    rest = st.lists(st.sampled_from(_PARTS), max_size=4).map("".join)
    return st.builds("{}{}{}".format, st.sampled_from(_SCHEMES), st.sampled_from(_SLASHES), rest)


def secret_addresses() -> SearchStrategy[str]:
    """Addresses with a user and a password, where the password may have any sign in it."""
    odd = st.sampled_from(("", "/", "?", "#", ":", "%", "@", "+", "[", "\n", " "))
    return st.builds(
        "{}{}AKIA:{}{}{}@bucket/t".format,
        st.sampled_from([scheme for scheme in _SCHEMES if scheme]),
        st.sampled_from(("://", ":/", ":///")),
        odd,
        st.just(SECRET),
        odd,
    )


def refused_addresses() -> SearchStrategy[str]:
    """Those that no store is asked for."""

    def is_refused(text: str) -> bool:
        try:
            return parse_uri(text).scheme in (LOCAL, MEMORY)
        except MemWalError:
            return True

    return (addresses() | secret_addresses()).filter(is_refused)


def _address(_: Any, text: str) -> None:
    address = safely(lambda: parse_uri(text))
    safely(lambda: check_uri(text))
    if isinstance(address, MemWalError):
        return
    again = parse_uri(str(address))
    if again != address:
        raise Broken(f"{text!r} is {address}, which is {again}")
    if {"..", "."} & set(address.path.split("/")):
        raise Broken(f"{text!r} leads out of where it is: {address}")
    location = safely(lambda: TableLocation(text))
    if not isinstance(location, MemWalError) and address.scheme == LOCAL:
        for child in ("../x", "/x", "a/../b", "a\0", ""):
            found = safely(lambda child=child: location.child(child))
            if not isinstance(found, MemWalError):
                raise Broken(f"{child!r} is taken for something inside of {text!r}")


def _reference(_: Any, text: str) -> None:
    safely(lambda: check_storage_options_ref(text))
    # Options given by mistake are a secret; an absolute path of a JSON file is none.
    safely(lambda: check_storage_options_ref(f"{text}{SECRET}"))
    name = safely(lambda: check_name(text))
    if not isinstance(name, MemWalError) and not (name.isascii() and "/" not in name):
        raise Broken(f"{name!r} is no name")


_KEYS = (
    *("aws_access_key_id", "aws_secret_access_key", "aws_endpoint", "aws_region", "timeout"),
    *("client_max_retries", "client_retry_timeout", "headers.x", "headers.", "proxy_url", "bucket"),
    *("allow_http", "google_service_account_key", "azure_storage_sas_token", "connect_timeout"),
    *(
        "aws_profile",
        "user_agent",
        "root_certificate",
        "azure_storage_account_name",
        "pool_idle_timeout",
    ),
    *("aws_conditional_put", "aws_checksum_algorithm", "s3_express", "AWS_TOKEN"),
)


def _options() -> SearchStrategy[tuple[str, dict[str, str]]]:
    value = texts("true", "60s", "http://h", f"http://u:{SECRET}@h") | one_of_these(*NUMBERS).map(
        str
    )
    keys = st.sampled_from(_KEYS) | texts()
    scheme = st.sampled_from(
        ("s3://b/t", "gs://b/t", "az://c/t", "abfss://c@a.dfs.core.windows.net/t")
    )
    given = st.dictionaries(keys, value, max_size=4)
    hidden = st.sampled_from(
        ("aws_secret_access_key", "azure_storage_sas_token", "whatever", "token")
    )
    return st.tuples(scheme, st.builds(lambda g, k: {**g, k: SECRET}, given, hidden))


def _open(_: Any, given: tuple[str, dict[str, str]]) -> None:
    uri, options = given
    safely(lambda: cloud_settings(uri.partition(":")[0], options, {}))
    safely(lambda: open_store(uri, options))
    check_secret(str(redact(options)), where="redact")
    location = safely(lambda: TableLocation(uri, options))
    check_secret(repr(location), where="repr")


def _options_file(folder: Path, content: str) -> None:
    file = folder / "options.json"
    file.write_bytes(content.encode(errors="surrogatepass"))
    safely(lambda: read_options_file(file))


def _contents() -> SearchStrategy[str]:
    document = {"aws_secret_access_key": SECRET, "aws_region": "r", "timeout": 5}
    return (
        mutated(document).map(json.dumps)
        | texts(SECRET)
        | st.builds(lambda text: f'{{"a": "{SECRET}"{text}', texts())
        | st.integers(1, 6_000).map(lambda depth: '{"a":' * depth)
    )


def _credentials(_: Any, given: Any) -> None:
    source = Credentials("file:/x", lambda: given, scheme="s3", clock=lambda: 1e9)
    safely(lambda: source.current().for_lance())


_HOST = (
    "h",
    "u:p@h",
    "[::1]",
    "[",
    "h:0",
    "h:99999",
    "h:x",
    "h ",
    "\u00e9",
    "a" * 70,
    "..",
    "169.254.169.254",
)


def _webhooks() -> SearchStrategy[str]:
    scheme = st.sampled_from(
        ("https://", "http://", "file:///", "ftp://", "HTTP://", "javascript:", "")
    )
    tail = st.sampled_from(("", "\nx", " x", "?a", "#a", "\x7f", "\u00e9", "%", "\\", "\0", "@x"))
    return st.builds(
        "{}{}/services/{}{}".format, scheme, st.sampled_from(_HOST), st.just(SECRET), tail
    ) | (st.builds("{}u:{}@{}/x{}".format, scheme, st.just(SECRET), st.sampled_from(_HOST), tail))


@contextmanager
def _no_network(folder: Path) -> Iterator[Path]:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionRefusedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", refuse)
        yield folder


def _webhook(folder: Path, text: str) -> None:
    file = folder / "webhook"
    file.write_bytes(text.encode(errors="surrogatepass"))
    found = safely(lambda: Webhook.from_file(file))
    if isinstance(found, MemWalError):
        return
    check_secret(repr(found), where="repr")
    safely(lambda: deliver(found.post, [], attempts=1))


def _catalog_urls() -> SearchStrategy[str]:
    driver = st.sampled_from(
        (
            "sqlite",
            "sqlite+pysqlite",
            "postgresql",
            "postgresql+psycopg",
            "mysql",
            "x",
            "",
            "sqlite+x",
        )
    )
    rest = texts(
        "/:memory:", "//h:0/x", f"u:{SECRET}@127.0.0.1:1/x", "/x?mode=ro&uri=true", "/x?foo=1"
    )
    return (
        st.builds("{}://{}".format, driver, rest)
        | st.builds("{}://u:{}@127.0.0.1:{}/{}".format, driver, st.just(SECRET), rest, rest)
        | texts(f"postgresql://127.0.0.1:1/x?password={SECRET}", f"x?password={SECRET}")
    )


def _catalog(folder: Path, url: str) -> None:
    def use() -> None:
        catalog = Catalog(url)
        try:
            catalog.list()
        finally:
            catalog.close()

    safely(use)


AREAS = (
    Area(
        "addresses",
        addresses() | secret_addresses() | texts(),
        _address,
        (uris, "_parse_local"),
    ),
    Area(
        "names and references",
        texts("airflow:x", "/x/y.json", "airflow:", ".json", "flights_2024-eu"),
        _reference,
        (records, "InvalidInputError"),
    ),
    Area("storage options", _options(), _open, (options, "_parse_number")),
    Area(
        "files with storage options",
        _contents(),
        _options_file,
        (credentials, "parse_options"),
        lambda folder: _no_network(folder),
    ),
    Area(
        "credentials of a source",
        st.dictionaries(
            st.sampled_from(
                ("aws_access_key_id", "aws_secret_access_key", "expires_at_millis", "x")
            ),
            st.sampled_from((*NUMBERS, *NASTY, SECRET)),
            max_size=4,
        ),
        _credentials,
        (CachedCredentials, "for_lance"),
    ),
    Area("webhooks", _webhooks() | texts(), _webhook, (alerts, "slack_body"), _no_network),
    Area(
        "addresses of a catalog",
        _catalog_urls(),
        _catalog,
        (database.sa, "make_url"),
        _no_network,
        examples=8,
    ),
)
