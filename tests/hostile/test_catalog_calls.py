"""Wrong arguments of every public call of a catalog and of the fleet: a result or a MemWalError."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hostile.calls import QUICK, WRONG, Call
from hostile.harness import must_answer
from support.data.tables import MakeTable

import memwal.catalog
import memwal.fleet
import memwal.spark
from memwal import quarantine_review
from memwal.boundary.public import is_public
from memwal.catalog import Catalog
from memwal.catalog.backoff import Backoffs
from memwal.catalog.leases import Lease, Leases
from memwal.catalog.notifications import Notifications
from memwal.errors import ArgumentTypeError, MemWalError
from memwal.fleet import JobRequest
from memwal.quality.quarantine import Quarantine

CLASSES = (Catalog, Leases, Lease, Backoffs, Notifications)
NOW = datetime(2026, 6, 1, tzinfo=UTC)

REVIEW = ("waiting_rows", "release", "discard")
MODULES = (memwal.fleet, memwal.catalog, memwal.spark)
VALID: Mapping[str, Callable[[], object]] = {
    "prefix": lambda: "lake",
    "tables": list,
    "request": lambda: JobRequest("flights", "snapshot"),
    "job_name": lambda: "mine",
    "execute": lambda: lambda guard: None,
    "origins": list,
    "name": lambda: "other",
    "table": lambda: "flights",
    "table_name": lambda: "flights",
    "uri": lambda: "s3://lake/other.lance",
    "path": lambda: "snapshot.json",
    "job": lambda: "merge",
    "resource": lambda: "flights/merge",
    "holder": lambda: "me",
    "token": lambda: 1,
    "ttl": lambda: timedelta(seconds=30),
    "since": lambda: NOW,
    "before": lambda: NOW,
    "now": lambda: NOW,
    "most": lambda: 3,
    "key": lambda: "rows",
    "run_id": lambda: 1,
    "channel": lambda: "slack",
}


def calls() -> Iterator[Call]:
    for cls in CLASSES:
        for name, member in vars(cls).items() if cls is not Catalog else _members(cls):
            made_by_users = name == "__init__" and cls is Catalog
            if callable(member) and (not name.startswith("_") or made_by_users):
                yield Call(f"{cls.__name__}.{name}", cls, name)


def _members(cls: type) -> list[tuple[str, object]]:
    return [(name, getattr(cls, name)) for name in dir(cls)]


CALLS = list(calls())
FUNCTIONS = [
    function
    for module in MODULES
    for function in (getattr(module, name) for name in module.__all__)
    if inspect.isfunction(function)
] + [getattr(quarantine_review, name) for name in REVIEW]


def test_every_public_call_is_behind_the_boundary() -> None:
    assert [call.name for call in CALLS if not is_public(call.target)] == []
    assert len(CALLS) > 35
    assert [function.__qualname__ for function in FUNCTIONS if not is_public(function)] == []
    assert len(FUNCTIONS) > 10


@pytest.mark.few(20)
@pytest.mark.parametrize(
    "names", [QUICK, pytest.param(tuple(WRONG), marks=pytest.mark.soak)], ids=["quick", "all"]
)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_wrong_arguments(
    call: Call,
    names: tuple[str, ...],
    catalog: Catalog,
    make_table: MakeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    catalog.register("flights", uri=make_table().uri)
    for parameter in call.parameters():
        for name in names:
            arguments = {**valid(call), parameter.name: WRONG[name]()}
            attempt(call, catalog, arguments, f"{call}({parameter.name}={name})")
    error = attempt(call, catalog, {**valid(call), "nonsense": 1}, f"{call}(nonsense)")
    assert isinstance(error, ArgumentTypeError)
    assert "flights" in [table.name for table in catalog.list()] or call.attribute == "unregister"


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "function", [f for f in FUNCTIONS if f is not memwal.spark.register], ids=lambda f: f.__name__
)
def test_wrong_arguments_of_functions(
    function: Callable[..., object],
    catalog: Catalog,
    make_table: MakeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    table = make_table()
    managed = catalog.register("flights", uri=table.uri)
    known = {
        "catalog": lambda: catalog,
        "managed": lambda: managed,
        "table": lambda: table,
        "quarantine": lambda: Quarantine.of(table.location, None),
        **{name: value for name, value in VALID.items() if name != "table"},
    }
    parameters = inspect.signature(function).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        for name, wrong in WRONG.items():
            arguments = {key: known.get(key, object)() for key in required}
            arguments[parameter.name] = wrong()
            what = f"{function.__name__}({parameter.name}={name})"
            must_answer(lambda given=arguments: function(**given), what)
    assert catalog.get("flights") == managed


def valid(call: Call) -> dict[str, object]:
    return {
        parameter.name: VALID.get(parameter.name, object)()
        for parameter in call.parameters()
        if parameter.default is parameter.empty
    }


def attempt(
    call: Call, catalog: Catalog, arguments: dict[str, object], what: str
) -> MemWalError | None:
    def make() -> None:
        if call.attribute == "__init__":
            Catalog(**arguments).close()  # type: ignore[arg-type]
            return
        with catalog.leases.acquire("a resource", holder="a test") as lease:
            receiver = {
                Catalog: catalog,
                Leases: catalog.leases,
                Lease: lease,
                Backoffs: catalog.backoffs,
                Notifications: catalog.notifications,
            }[call.owner or Catalog]
            result = getattr(receiver, call.attribute)(**arguments)
            if isinstance(result, Lease):
                result.release()

    return must_answer(make, what)
