"""Wrong arguments of every public call: a result or a MemWalError, and the table as before."""

import asyncio
import inspect
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile.calls import QUICK, VALID, WRONG, Call, calls
from hostile.harness import must_answer
from support.data.tables import rows

import memwal
from memwal import aio
from memwal.boundary.public import is_public
from memwal.errors import ArgumentTypeError, MemWalError
from memwal.queries import Queries
from memwal.reader.result import Result
from memwal.reading_writer import Writer
from memwal.table import Table
from memwal.writer.region_writer.handle import WriteHandle
from memwal.writer.table_writer import TableWriter

CALLS = list(calls())


@pytest.fixture(scope="module")
def tried_table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    folder = tmp_path_factory.mktemp("calls")
    table = memwal.create(
        folder / "tried.lance", rows({1: 1}).schema, primary_key=["id"], region_spec="bucket:id:2"
    )
    with table.writer() as writer:
        writer.upsert(rows({1: 1, 2: 2, 3: 3}))
        writer.flush()
        table.merge()
        writer.upsert(rows({3: 4, 4: 4}))
    return table


def content(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan().to_table().to_pylist(), key=lambda row: row["id"])


def test_every_public_call_is_behind_the_boundary() -> None:
    outside = [call.name for call in CALLS if not is_public(call.target)]
    assert outside == []
    assert len(CALLS) > 60


@pytest.mark.few(20)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_wrong_arguments(
    call: Call, tried_table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt_all(call, tried_table, QUICK, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_all_wrong_arguments(
    call: Call, tried_table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt_all(call, tried_table, tuple(WRONG), tmp_path, monkeypatch)


def attempt_all(
    call: Call,
    table: Table,
    names: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Feed wrong values to each parameter, and an argument that the call does not have."""
    monkeypatch.chdir(folder)
    before = content(table)
    for parameter in call.parameters():
        for name in names:
            values = {**valid(call, folder), parameter.name: WRONG[name]()}
            attempt(call, table, values, f"{call}({parameter.name}={name})")
    signature = inspect.signature(call.target)
    if all(p.kind is not p.VAR_KEYWORD for p in signature.parameters.values()):
        error = attempt(call, table, {**valid(call, folder), "nonsense": 1}, f"{call}(nonsense)")
        assert isinstance(error, ArgumentTypeError)
    assert content(table) == before


def valid(call: Call, folder: Path) -> dict[str, object]:
    values = call.valid()
    if "uri" in values:
        values["uri"] = str(folder / f"{uuid.uuid4()}.lance")
    if call.attribute == "restore":
        # An earlier version of the table is no wrong value.
        values["dry_run"] = True
    return values


def attempt(call: Call, table: Table, values: dict[str, object], what: str) -> MemWalError | None:
    """Make a call; its result is used up. Anything but an answer or a MemWalError fails."""

    def make() -> None:
        if call.owner in (aio.AsyncQueries, aio.AsyncWriter, aio.AsyncHandle):
            asyncio.run(_on_async(call, table, values))
        else:
            _on_receiver(call, table, values)

    return must_answer(make, what)


def _on_receiver(call: Call, table: Table, values: dict[str, object]) -> None:
    if call.attribute == "__init__":
        assert call.owner is not None
        call.owner(**values)
        return
    if call.owner is None or inspect.ismethod(call.target):
        result = call.target(**values)
        if hasattr(result, "__aenter__"):
            asyncio.run(_enter(result))
        return
    with table.writer() as writer:
        result = getattr(_receiver(call.owner, table, writer), call.attribute)(**values)
        if isinstance(result, Iterator):
            list(result)
        if isinstance(result, Result):
            result.to_table()
        if isinstance(result, TableWriter):
            result.abort()


def _receiver(owner: type, table: Table, writer: Writer) -> object:
    if issubclass(owner, TableWriter):
        return writer
    if issubclass(owner, WriteHandle):
        return writer.delete(VALID["keys"]())
    if issubclass(owner, Table) or owner is Queries:
        return table
    if owner is memwal.RegionSpec:
        return memwal.RegionSpec.bucket("id", 2)
    if owner is memwal.WriterOptions:
        return memwal.WriterOptions()
    return table.scan()


async def _on_async(call: Call, table: Table, values: dict[str, object]) -> None:
    async with aio.open_writer(table) as writer:
        receiver: object = writer
        if call.owner is aio.AsyncQueries:
            receiver = writer.fresh()
        if call.owner is aio.AsyncHandle:
            receiver = await writer.delete(VALID["keys"]())  # type: ignore[arg-type]
        result = getattr(receiver, call.attribute)(**values)
        if inspect.isawaitable(result):
            await result


async def _enter(manager: Any) -> None:
    async with manager:
        pass
