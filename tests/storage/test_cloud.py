"""What goes wrong between here and an object store, and what a caller is told."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest
from support.processes import run_python
from support.stores.s3_emulator import S3Emulator

from memwal.errors import (
    ConflictError,
    MemWalError,
    ObjectExistsError,
    StoreAccessError,
    StoreFullError,
    StoreUnavailableError,
    TableSetupError,
    UnsupportedStoreError,
)
from memwal.storage.cloud import memory_backend
from memwal.storage.object_store import ObjectStore
from memwal.storage.open import check_put_if_absent, open_store

if TYPE_CHECKING:
    from storage.conftest import FailingS3

KEY = "/bucket/table/a/1"

CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "create": lambda store: store.create("a/1", b"x"),
    "put": lambda store: store.put("a/1", b"x"),
    "replace": lambda store: store.replace("a/1", b"x", expected=b""),
    "get": lambda store: store.get("a/1"),
    "get_range": lambda store: store.get_range("a/1", start=0, length=1),
    "head": lambda store: store.head("a/1"),
    "list": lambda store: list(store.list("a")),
    "list_folders": lambda store: store.list_folders("a"),
    "delete": lambda store: store.delete("a/1"),
    "delete_many": lambda store: store.delete_many(["a/1", "a/2"]),
    "delete_folder": lambda store: store.delete_folder("a"),
}


def test_a_retry_after_an_error_that_stored_finds_its_own_object(failing_s3: FailingS3) -> None:
    failing_s3.work_then_answer(500)
    store = failing_s3.open()

    with pytest.raises(ObjectExistsError):
        store.create("a/1", b"mine")

    assert store.get("a/1") == b"mine"
    assert [method for method, *_ in failing_s3.requests] == ["PUT", "PUT", "GET"]


def test_a_retry_after_a_dropped_connection_finds_its_own_object(failing_s3: FailingS3) -> None:
    failing_s3.work_then_hang_up()
    store = failing_s3.open()

    with pytest.raises(ObjectExistsError):
        store.create("a/1", b"mine")

    assert store.get("a/1") == b"mine"


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_a_store_that_keeps_failing_leaves_the_outcome_open(
    failing_s3: FailingS3, status: int
) -> None:
    failing_s3.work_then_answer(status)
    failing_s3.answer(status, "SlowDown", "busy")
    failing_s3.answer(status, "SlowDown", "busy")
    store = failing_s3.open()

    with pytest.raises(StoreUnavailableError):
        store.create("a/1", b"mine")

    assert store.get("a/1") == b"mine"
    assert len(failing_s3.requests) == 4


@pytest.mark.parametrize("call", ["create", "put"])
def test_a_refusal_after_a_retry_leaves_the_outcome_open(failing_s3: FailingS3, call: str) -> None:
    failing_s3.work_then_answer(500)
    failing_s3.answer(403, "ExpiredToken", "too late")
    store = failing_s3.open()

    with pytest.raises(StoreUnavailableError):
        CALLS[call](store)

    assert store.get("a/1") == b"x"


def test_a_read_that_is_refused_after_a_retry_is_refused(failing_s3: FailingS3) -> None:
    failing_s3.answer(500)
    failing_s3.answer(403, "ExpiredToken", "too late")

    with pytest.raises(StoreAccessError):
        failing_s3.open().get("a/1")


def test_the_number_of_retries_is_an_option(failing_s3: FailingS3) -> None:
    failing_s3.answer(500)
    failing_s3.answer(500)

    with pytest.raises(StoreUnavailableError):
        failing_s3.open(client_max_retries="0").create("a/1", b"x")

    assert len(failing_s3.requests) == 1


def test_a_timeout_leaves_the_outcome_open(failing_s3: FailingS3) -> None:
    failing_s3.work_then_sleep(1.5)

    with pytest.raises(StoreUnavailableError):
        failing_s3.open(timeout="300ms").create("a/1", b"mine")

    assert failing_s3.open().get("a/1") == b"mine"


def test_nobody_listening_is_unavailable(failing_s3: FailingS3) -> None:
    store = failing_s3.open(aws_endpoint="http://127.0.0.1:1", client_max_retries="0")

    with pytest.raises(StoreUnavailableError):
        store.create("a/1", b"x")


@pytest.mark.parametrize("status", [409, 412])
def test_a_refused_create_is_taken(failing_s3: FailingS3, status: int) -> None:
    failing_s3.answer(status, "Whatever", "no")

    with pytest.raises(ObjectExistsError):
        failing_s3.open().create("a/1", b"x")


@pytest.mark.parametrize("was_read", [True, False])
def test_a_replacement_whose_answer_was_lost_is_not_called_a_conflict(
    failing_s3: FailingS3, was_read: bool
) -> None:
    store = failing_s3.open()
    store.put("a/1", b"old")
    if was_read:
        store.get("a/1")
    else:
        failing_s3.script.append(lambda handler: handler.work())  # the GET
    failing_s3.work_then_answer(500)

    with pytest.raises(StoreUnavailableError):
        store.replace("a/1", b"new", expected=b"old")

    assert store.get("a/1") == b"new"


def test_a_store_that_knows_its_tags_only_without_quotes(failing_s3: FailingS3) -> None:
    failing_s3.quoted_tags = False
    store = failing_s3.open()
    store.put("a/1", b"one")

    store.replace("a/1", b"two", expected=b"one")

    assert store.get("a/1") == b"two"
    with pytest.raises(ConflictError):
        store.replace("a/1", b"three", expected=b"one")


def test_somebody_else_between_reading_and_replacing_is_a_conflict(failing_s3: FailingS3) -> None:
    store = failing_s3.open()
    store.put("a/1", b"one")

    def read_then_change(handler: object) -> bool:
        handler.work()  # type: ignore[attr-defined]
        failing_s3.objects[KEY] = b"of somebody else"
        return True

    failing_s3.script.append(read_then_change)

    with pytest.raises(ConflictError):
        store.replace("a/1", b"two", expected=b"one")

    assert store.get("a/1") == b"of somebody else"


def test_what_was_just_read_is_replaced_by_one_request(failing_s3: FailingS3) -> None:
    store = failing_s3.open()
    store.put("a/1", b"one")
    read = store.get("a/1")
    failing_s3.requests.clear()

    store.replace("a/1", b"two", expected=read)

    assert [method for method, *_ in failing_s3.requests] == ["PUT"]
    with pytest.raises(ConflictError):
        store.replace("a/1", b"three", expected=read)
    assert store.get("a/1") == b"two"


@pytest.mark.parametrize("content", [None, b"of somebody else", b"one"])
def test_what_was_read_may_have_changed(failing_s3: FailingS3, content: bytes | None) -> None:
    store, other = failing_s3.open(), failing_s3.open()
    store.put("a/1", b"one")
    read = store.get("a/1")
    other.put("a/1", b"in between")
    if content is None:
        other.delete("a/1")
    else:
        other.put("a/1", content)

    with nullcontext() if content == read else pytest.raises(ConflictError):
        store.replace("a/1", b"two", expected=read)

    expected = b"two" if content == read else content
    assert (store.get("a/1") if store.exists("a/1") else None) == expected


@pytest.mark.few(20)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (403, "AccessDenied"),
        (401, "Unauthorized"),
        (400, "ExpiredToken"),
    ],
)
def test_credentials_that_are_refused(
    failing_s3: FailingS3, call: str, status: int, code: str
) -> None:
    failing_s3.answer(status, code, "you may not")

    with pytest.raises(StoreAccessError):
        CALLS[call](failing_s3.open())

    assert len(failing_s3.requests) == 1


@pytest.mark.parametrize("call", CALLS)
def test_a_bucket_that_does_not_exist(emulator: S3Emulator, call: str) -> None:
    store = open_store("s3://no-such-bucket/table", emulator.storage_options)

    if call == "head":
        assert store.head("a/1") is None
        return
    with pytest.raises(TableSetupError):
        CALLS[call](store)


@pytest.mark.parametrize(
    ("status", "code", "error", "named"),
    [
        (507, "XMinioStorageFull", StoreFullError, "XMinioStorageFull"),
        (403, "QuotaExceeded", StoreFullError, "QuotaExceeded"),
        (400, "AuthorizationHeaderMalformed", TableSetupError, "aws_region"),
        (301, "PermanentRedirect", TableSetupError, "aws_region"),
        (501, "NotImplemented", UnsupportedStoreError, "If-None-Match"),
    ],
)
def test_other_refusals_are_told_apart(
    failing_s3: FailingS3, status: int, code: str, error: type[MemWalError], named: str
) -> None:
    failing_s3.answer(status, code, "no")

    with pytest.raises(error, match=named):
        failing_s3.open(client_max_retries="0").create("a/1", b"x")


@pytest.mark.parametrize("call", ["delete", "delete_many"])
def test_a_delete_that_is_refused_for_one_object(failing_s3: FailingS3, call: str) -> None:
    body = (
        "<DeleteResult><Error><Key>table/a/1</Key><Code>AccessDenied</Code>"
        "<Message>Access Denied</Message></Error></DeleteResult>"
    )
    failing_s3.script.append(lambda handler: handler.reply(200, body.encode()))

    with pytest.raises(StoreAccessError):
        CALLS[call](failing_s3.open())


def test_a_delete_that_finds_nothing_is_fine(failing_s3: FailingS3) -> None:
    body = (
        "<DeleteResult><Error><Key>table/a/1</Key><Code>NoSuchKey</Code>"
        "<Message>gone</Message></Error></DeleteResult>"
    )
    store = failing_s3.open()
    store.put("a/2", b"")
    failing_s3.script.append(lambda handler: handler.reply(200, body.encode()))

    store.delete_many(["a/1", "a/2"])

    assert failing_s3.objects == {}


def test_plain_http_must_be_allowed(failing_s3: FailingS3) -> None:
    with pytest.raises(TableSetupError, match="allow_http"):
        failing_s3.open(allow_http="false").create("a/1", b"x")


def test_conditional_puts_that_are_turned_off(failing_s3: FailingS3) -> None:
    store = failing_s3.open(aws_conditional_put="disabled")

    with pytest.raises(UnsupportedStoreError):
        check_put_if_absent(store)


def test_a_store_that_overwrites_is_found_out(failing_s3: FailingS3) -> None:
    def overwrite(handler: object) -> bool:
        del handler.headers["If-None-Match"]  # type: ignore[attr-defined]
        return handler.work()  # type: ignore[attr-defined, no-any-return]

    failing_s3.script.extend([overwrite, overwrite])

    with pytest.raises(UnsupportedStoreError):
        check_put_if_absent(failing_s3.open())

    assert failing_s3.objects == {}


def test_a_store_that_refuses_and_overwrites_is_found_out(failing_s3: FailingS3) -> None:
    def overwrite_and_refuse(handler: object) -> bool:
        del handler.headers["If-None-Match"]  # type: ignore[attr-defined]
        return handler.work(answer=412)  # type: ignore[attr-defined, no-any-return]

    failing_s3.script.append(lambda handler: handler.work())
    failing_s3.script.append(overwrite_and_refuse)

    with pytest.raises(UnsupportedStoreError):
        check_put_if_absent(failing_s3.open())


def test_names_that_no_key_may_have_are_not_listed_but_deleted() -> None:
    backend = memory_backend("names-that-no-key-may-have")
    for path in ("t/a/1", "t/a/.2.tmp"):
        backend.put(path, b"")
    store = open_store("memory://names-that-no-key-may-have/t")

    assert [info.key for info in store.list("")] == ["a/1"]
    store.delete_folder("a")

    assert [meta["path"] for batch in backend.list() for meta in batch] == []


def test_an_object_for_the_folder_itself_is_not_listed(emulator: S3Emulator) -> None:
    """As consoles, Hadoop and Arrow store one."""
    bucket = emulator.create_bucket()
    store = open_store(f"s3://{bucket}/table", emulator.storage_options)
    store.put("a/1", b"x")
    address = f"{emulator.endpoint}/{bucket}/table/a/"
    urlopen(Request(address, data=b"", method="PUT"), timeout=60).close()

    assert [info.key for info in store.list("a")] == ["a/1"]


def test_a_failed_cleanup_does_not_hide_what_went_wrong(failing_s3: FailingS3) -> None:
    failing_s3.answer(403, "AccessDenied", "no writing")
    failing_s3.answer(500)

    with pytest.raises(StoreAccessError):
        check_put_if_absent(failing_s3.open(client_max_retries="0"))


def test_no_secret_is_repeated(failing_s3: FailingS3) -> None:
    secret = "the-secret-key"
    failing_s3.answer(
        403, "SignatureDoesNotMatch", f"signed with {secret} by the-key-id, token the-token-itself"
    )
    store = failing_s3.open(aws_session_token="the-token-itself")

    with pytest.raises(StoreAccessError) as caught:
        store.create("a/1", b"x")

    shown = "".join(traceback.format_exception(caught.value)) + repr(store) + store.uri
    for hidden in (secret, "the-key-id", "the-token-itself", "Debug source"):
        assert hidden not in shown
    assert "SignatureDoesNotMatch" in shown


def test_headers_of_the_options_are_sent(failing_s3: FailingS3) -> None:
    store = failing_s3.open(**{"headers.x-team": "flights"})

    store.create("a/1", b"x")

    headers = {key.lower(): value for key, value in failing_s3.requests[0][2].items()}
    assert headers["x-team"] == "flights"


FORK = """
import os, sys
from memwal.errors import TableSetupError
from memwal.storage.open import open_store

endpoint = sys.argv[1]
options = {
    "aws_endpoint": endpoint, "allow_http": "true", "aws_access_key_id": "k",
    "aws_secret_access_key": "s", "client_max_retries": "0",
}
store = open_store("s3://bucket/table", options)

def in_child(call):
    pid = os.fork()
    if pid == 0:
        try:
            call()
            os._exit(0)
        except TableSetupError as error:
            os._exit(7 if "spawn" in str(error) else 8)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def create(key):
    store.create(key, b"x")

first = in_child(lambda: create("a/1"))
create("a/2")
second = in_child(lambda: create("a/3"))
print(first, second)
"""


def test_a_forked_process_is_told_instead_of_hanging(failing_s3: FailingS3) -> None:
    done = run_python(FORK, failing_s3.endpoint)

    assert done.stdout == "0 7\n", done.stderr
    assert sorted(failing_s3.objects) == ["/bucket/table/a/1", "/bucket/table/a/2"]
