"""Results of applications, in files and in object stores."""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from memwal.errors import ConflictError, InvalidInputError, ObjectExistsError, StoreError
from memwal.spark import result_store
from memwal.spark.result_store import clean_results, delete_result, read_result, write_result
from memwal.storage.open import open_store


@pytest.fixture(params=["file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/results" if request.param == "file" else f"memory://{uuid4().hex}/r"


def test_a_result_is_read_where_it_was_written(folder: str) -> None:
    address = f"{folder}/run-1.json"
    assert read_result(address) is None
    write_result(address, '{"job": "merge"}\n')
    assert read_result(address) == {"job": "merge"}
    delete_result(address)
    delete_result(address)
    assert read_result(address) is None


def test_a_name_is_for_one_result(folder: str) -> None:
    write_result(f"{folder}/a.json", '{"n": 1}')
    # As after an answer that was lost: it is the same.
    write_result(f"{folder}/a.json", '{"n": 1}')
    with pytest.raises(ConflictError):
        write_result(f"{folder}/a.json", '{"n": 2}')
    assert read_result(f"{folder}/a.json") == {"n": 1}


def test_a_write_that_the_store_answers_wrongly_is_settled(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = open_store(folder)

    class Ambiguous:
        def create(self, key: str, data: bytes) -> None:
            real.create(key, data)
            raise ObjectExistsError(key)

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    def ambiguous(*_: Any) -> Any:
        return Ambiguous()

    monkeypatch.setattr(result_store, "open_store", ambiguous)
    write_result(f"{folder}/a.json", "{}")
    assert read_result(f"{folder}/a.json") == {}


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_result(str(path), "1")
    write_result(str(path), "2")
    assert path.read_text() == "2"
    with pytest.raises(StoreError):
        write_result(str(tmp_path / "none" / "result.json"), "1")
    assert list(tmp_path.iterdir()) == [path]


def test_a_wrong_address_is_named() -> None:
    with pytest.raises(InvalidInputError):
        write_result("ftp://host/result.json", "{}")


def test_old_results_are_cleaned_up_and_nothing_else(tmp_path: Path) -> None:
    folder = f"file://{tmp_path}"
    for name in ("old.json", "young.json", "old.txt", "deeper/old.json"):
        write_result(f"{folder}/{name}", "{}")
    past = time.time() - 100
    for name in ("old.json", "old.txt", "deeper/old.json"):
        os.utime(tmp_path / name, (past, past))
    assert clean_results(folder, older_than=timedelta(seconds=200)) == 0
    assert clean_results(folder, older_than=timedelta(seconds=50)) == 1
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"young.json", "old.txt", "deeper/old.json"}
    assert clean_results(f"file://{tmp_path}/none") == 0
