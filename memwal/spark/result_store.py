"""The result of an application: a file, or an object if the driver runs on another machine.

The name of an object is used once: it is taken by put-if-absent, so that a read of the name returns
the whole result of its one driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from memwal.errors import ConflictError, CorruptDataError, ObjectNotFoundError, StoreError
from memwal.storage.object_store import create_settled
from memwal.storage.open import open_store
from memwal.util.safe_json import read_json

KEEP = timedelta(days=7)
"""Age at which a result that was not fetched is cleaned up."""

_SUFFIX = ".json"


def check_target(target: str, options: Mapping[str, str] | None = None) -> None:
    """Make sure that a result could go somewhere, before the work is done; asks no store."""
    if "://" in target:
        open_store(_divided(target)[0], options)


def write_result(target: str, text: str, options: Mapping[str, str] | None = None) -> None:
    """Write the result of an application; it is there whole or not at all.

    ``target`` is the path of a file, which is replaced; or the address of an object, such as
    ``s3://lake/results/1f2e.json`` or ``file:///mnt/results/1f2e.json``, whose name is free.
    ConflictError is raised if another result has this name.
    """
    if "://" not in target:
        _write_file(Path(target), text)
        return
    folder, name = _divided(target)
    if create_settled(open_store(folder, options), name, text.encode()) is not None:
        raise ConflictError(f"another result is at {target}: a name is for one run of a job")


def read_result(address: str, options: Mapping[str, str] | None = None) -> dict[str, object] | None:
    """Read the result at an address; None if there is none."""
    folder, name = _divided(address)
    try:
        result = read_json(open_store(folder, options).get(name))
    except ObjectNotFoundError:
        return None
    except ValueError as error:
        raise CorruptDataError(f"{address} holds no result: {error}; run the job again") from error
    if not isinstance(result, dict):
        raise CorruptDataError(f"{address} holds no result of a job; run the job again")
    return result


def delete_result(address: str, options: Mapping[str, str] | None = None) -> None:
    """Delete the result at an address; one that does not exist is fine."""
    folder, name = _divided(address)
    open_store(folder, options).delete(name)


def clean_results(
    folder: str, options: Mapping[str, str] | None = None, *, older_than: timedelta = KEEP
) -> int:
    """Delete results older than ``older_than`` from a folder of results; return how many."""
    store = open_store(folder, options)
    before = datetime.now(UTC) - older_than
    old = [
        info.key
        for info in store.list("")
        if info.key.endswith(_SUFFIX) and "/" not in info.key and info.modified < before
    ]
    store.delete_many(old)
    return len(old)


def _divided(address: str) -> tuple[str, str]:
    folder, _, name = address.rpartition("/")
    return folder, name


def _write_file(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}-{uuid4().hex}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
