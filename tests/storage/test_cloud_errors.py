"""Texts of obstore that cannot be provoked here, as it wrote them elsewhere."""

import pytest
from obstore.exceptions import GenericError, NotFoundError, PermissionDeniedError

from memwal.errors import (
    InvalidInputError,
    MemWalError,
    ObjectNotFoundError,
    StoreAccessError,
    StoreUnavailableError,
    TableSetupError,
)
from memwal.storage.cloud_errors import (
    from_obstore_error,
    invalid_options_error,
    translate_errors,
    was_retried,
)

PERFORMING = "Generic S3 error: Error performing "
MACHINE = "169.254.169.254"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"{PERFORMING}PUT http://{MACHINE}/latest/api/token in 1ms - HTTP error: error sending "
            "request",
            StoreAccessError,
        ),
        (
            "Generic MicrosoftAzure error: Error performing token request: Error performing GET "
            f"http://{MACHINE}/metadata/identity/oauth2/token?api-version=2019-08-01 in 886.302µs "
            "- Server returned non-2xx status code: 400 Bad Request: ",
            StoreAccessError,
        ),
        ("Generic GCS error: GCP credential error: Unable to open service account file", None),
        (
            f"{PERFORMING}PUT https://b.s3.amazonaws.com/t in 286.978µs - Received redirect "
            "without LOCATION, this normally indicates an incorrectly configured region",
            TableSetupError,
        ),
        (
            "Generic GCS error: Error performing GET https://storage.googleapis.com/b/o in 1ms - "
            'Server returned non-2xx status code: 404 Not Found: {"error":{"code":404,"message":'
            '"The specified bucket does not exist.","errors":[{"reason":"notFound"}]}}',
            TableSetupError,
        ),
        (
            "Generic MicrosoftAzure error: Error performing GET https://a.blob.core.windows.net/c "
            "in 1ms - Server returned non-2xx status code: 404 Not Found: \ufeff<?xml?><Error>"
            "<Code>ContainerNotFound</Code><Message>The specified container does not exist.\n"
            "RequestId:1</Message></Error>",
            TableSetupError,
        ),
        (
            f"{PERFORMING}GET http://x/bucket/credentials.lance/token in 1ms, after 3 retries, "
            "max_retries: 3, retry_timeout: 180s  - Server returned non-2xx status code: 500 "
            "Internal Server Error: ",
            StoreUnavailableError,
        ),
    ],
)
def test_what_a_generic_error_means(text: str, expected: type[MemWalError] | None) -> None:
    error = from_obstore_error(
        GenericError(text + "\n\nDebug source:\nGeneric {}"), "read", "s3://bucket/t/a"
    )

    assert type(error) is (expected or StoreAccessError)
    assert str(error).startswith("cannot read s3://bucket/t/a: ")
    assert "Debug" not in str(error)
    assert "\n" not in str(error)


def test_signatures_in_addresses_are_cut_off() -> None:
    text = (
        "Error performing GET https://user:word@a.blob.core.windows.net/c/t?sv=1&sig=abc%2Fdef in "
        "1ms - HTTP error: request to https://a.blob.core.windows.net/c/t?sig=abc%2Fdef failed"
    )

    shown = str(from_obstore_error(GenericError(text), "read", "az://c/t"))

    assert "sig=" not in shown
    assert "word" not in shown
    assert "https://a.blob.core.windows.net/c/t" in shown


def test_a_long_page_of_a_proxy_is_cut_and_the_advice_is_not() -> None:
    text = "status code: 503 Unavailable: <Error><Message>" + "long " * 400 + "</Message></Error>"

    shown = str(from_obstore_error(GenericError(text), "read", "s3://b/t"))

    assert len(shown) <= 500
    short = str(from_obstore_error(GenericError("status code: 503"), "read", "s3://b/t"))
    assert shown.endswith(short.rpartition("status")[2].partition("; ")[2])


@pytest.mark.parametrize(
    ("action", "right"),
    [
        ("create", "put objects"),
        ("replace", "get and put objects"),
        ("look at", "get objects"),
        ("list", "list the bucket"),
        ("delete objects below", "delete objects"),
    ],
)
def test_a_refusal_names_the_right_that_lacks(action: str, right: str) -> None:
    text = "status code: 403 Forbidden: <Error><Code>AccessDenied</Code></Error>"

    shown = str(from_obstore_error(PermissionDeniedError(text), action, "s3://b/t"))

    assert right in shown


def test_options_that_make_no_client() -> None:
    error = invalid_options_error(
        GenericError('Generic Config error: failed to parse "s3cr3t!" as boolean\n\nDebug source:'),
        "s3://bucket",
        secrets=["s3cr3t!"],
    )

    assert isinstance(error, InvalidInputError)
    assert "storage_options" in str(error)
    assert "s3cr3t!" not in str(error)


def test_the_original_is_not_shown_with_it() -> None:
    with pytest.raises(StoreAccessError) as caught, translate_errors("read", "s3://bucket/t"):
        raise PermissionDeniedError("no: the dump with a secret")

    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None


def test_what_is_not_found_is_a_file_not_found_error() -> None:
    found = from_obstore_error(FileNotFoundError("Object at location a not found"), "read", "m/a")

    assert isinstance(found, ObjectNotFoundError)
    assert not issubclass(NotFoundError, FileNotFoundError)


def test_errors_of_memwal_pass_through() -> None:
    mine = TableSetupError("mine")
    with pytest.raises(TableSetupError) as caught, translate_errors("read", "s3://bucket/t"):
        raise mine
    assert caught.value is mine


@pytest.mark.parametrize(
    ("text", "retried"),
    [
        ("in 100ms, after 1 retries, max_retries: 1", True),
        ("in 100ms, after 12 retries, max_retries: 20", True),
        ("in 469.58µs - Server returned non-2xx status code: 412", False),
        ("Debug source: retries: 0, max_retries: 10", False),
    ],
)
def test_retries_are_seen(text: str, retried: bool) -> None:
    assert was_retried(GenericError(text)) is retried
