from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memwal.errors import OutcomeUnknownError, StoreAccessError
from memwal.storage.object_store import ObjectStore, create_settled

if TYPE_CHECKING:
    from storage.conftest import FailingS3


def test_a_free_name_is_taken(store: ObjectStore) -> None:
    assert create_settled(store, "a/1", b"mine") is None
    assert store.get("a/1") == b"mine"


def test_a_name_of_somebody_else_comes_back_with_its_bytes(store: ObjectStore) -> None:
    store.create("a/1", b"theirs")

    assert create_settled(store, "a/1", b"mine") == b"theirs"
    assert store.get("a/1") == b"theirs"


@pytest.mark.parametrize("status", [500, 503])
def test_an_object_of_our_own_is_recognised(failing_s3: FailingS3, status: int) -> None:
    failing_s3.work_then_answer(status)
    options = {"client_max_retries": "0"} if status == 503 else {}
    assert create_settled(failing_s3.open(**options), "a/1", b"mine") is None
    assert len(failing_s3.objects) == 1


def test_a_refusal_is_not_an_unknown_outcome(failing_s3: FailingS3) -> None:
    failing_s3.answer(403, "AccessDenied", "no")

    with pytest.raises(StoreAccessError):
        create_settled(failing_s3.open(), "a/1", b"mine")


def test_a_refusal_after_a_retry_is_an_unknown_outcome(failing_s3: FailingS3) -> None:
    failing_s3.work_then_answer(500)
    for _ in range(5):
        failing_s3.answer(403, "ExpiredToken", "no")

    with pytest.raises(OutcomeUnknownError):
        create_settled(failing_s3.open(), "a/1", b"mine")

    assert len(failing_s3.objects) == 1
