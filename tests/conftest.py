"""What every test may use: small tables, stores that fail on demand, and how hypothesis runs."""

from __future__ import annotations

import atexit
import functools
import gc
import itertools
import logging
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings
from support.airflow.webhook_server import WebhookServer, running_webhook
from support.bytecode import compile_ahead
from support.data import copied
from support.data.sampled import keep_few
from support.data.tables import SCHEMA, MakeTable
from support.groups import LastingFirst, is_slow_run, make_scheduler, rank
from support.leftovers import Belongings, leftovers
from support.oracles.facts import FACTS, facts_of, told
from support.oracles.secrecy import Secrecy
from support.renderings import Stored
from support.stores.faulty_store import FaultyStore, FaultyStores
from support.stores.s3_emulator import S3Emulator, running_emulator

import memwal
from memwal.lsm.indexes import maintained
from memwal.search.vector import in_memory as vector_memory
from memwal.storage import local_files
from memwal.storage.open import open_store

if TYPE_CHECKING:
    from memwal.catalog import Catalog

TESTS = Path(__file__).resolve().parent

# Else libraries complain at the end of the process that somebody still holds what they made.
atexit.register(gc.unfreeze)

# A shared machine makes every deadline a lie; in CI the same examples run each time.
settings.register_profile(
    "default",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# The last Spark gateway says goodbye when the interpreter ends, to a stream that is closed by then.
logging.getLogger("py4j").setLevel(logging.WARNING)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that stores renderings anew."""
    parser.addoption("--renew", action="store_true", help="store renderings in place of checking")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark facts that memwal leans on (``-m fact``), and begin with the longest default tests.

    Of tests that are marked ``few``, most cases are marked ``slow``.
    """
    keep_few(items)
    paths = {path: path.relative_to(TESTS).as_posix() for path in {item.path for item in items}}
    for item in items:
        for fact in facts_of(f"{paths[item.path]}::{item.name}"):
            item.add_marker(pytest.mark.fact(name=fact.name))
    if not config.pluginmanager.has_plugin("randomly"):
        items.sort(key=lambda item: rank(paths[item.path]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Look for no garbage among a million objects that all stay: modules and collected tests.

    Neither during the collection, which makes them, nor in any later search for garbage.
    """
    gc.disable()
    try:
        compile_ahead(session.config)
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Order the tests of a slow run, and let tests be marked ``few``."""
    config.addinivalue_line(
        "markers",
        "few(count): so many cases by default, with as many values of each parameter; others slow",
    )
    if is_slow_run(config.getoption("markexpr")):
        config.pluginmanager.register(LastingFirst())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute whole groups of tests over the processes."""
    return make_scheduler(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Say of a test that fails which facts may have changed, and what leans on them."""
    report = yield
    if report.failed:
        names = {mark.kwargs["name"] for mark in item.iter_markers("fact")}
        report.sections += [
            (f"fact {fact.name}", told(fact)) for fact in FACTS if fact.name in names
        ]
    return report


_belongings: dict[Path, Belongings] = {}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note what the process has before the first test of a module."""
    if item.path not in _belongings:
        _belongings.clear()
        _belongings[item.path] = Belongings()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, Any, Any]:
    """Fail the last test of a module that leaves something behind for the tests of others."""
    result = yield
    is_last = nextitem is None or nextitem.path != item.path
    if is_last or item.get_closest_marker("slow") is not None:
        # A connection that nobody closed is reported here, and not in a test that comes later.
        gc.collect()
    if is_last:
        # What the module imported stays.
        gc.freeze()
    if is_last and item.path in _belongings:
        remaining = leftovers(_belongings.pop(item.path))
        assert not remaining, f"the tests of this module leave behind: {remaining}"
    return result


@pytest.fixture(autouse=True)
def _quick_disk(request: pytest.FixtureRequest) -> Iterator[None]:
    """Wait for no disk: what a test writes need not outlive the machine.

    A third of the default tests' time would be such waiting. The tests of ``memwal.storage``, the
    slow tests and whatever runs in processes of its own do wait. That durable steps come in the
    right order is seen by the tests of the loss of power, which keep their own account.
    """
    if "storage" in request.path.parts or request.node.get_closest_marker("slow") is not None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(local_files, "syncfs", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_command_line() -> Iterator[None]:
    """Build the commands of an application once, and not for each call of hundreds."""
    build = functools.cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", build)
        patch.setattr(typer.testing, "_get_command", build)
        yield


@pytest.fixture(scope="session", autouse=True)
def _folder_of_copied_tables(tmp_path_factory: pytest.TempPathFactory) -> None:
    # The folder of a test goes when the test has passed.
    copied.keep_in(tmp_path_factory.mktemp("copied"))


_data_folders = itertools.count()


@pytest.fixture(autouse=True)
def _no_catalog_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # Not in the folder of the test, which most tests do not need: it is made and removed.
    home = tmp_path_factory.getbasetemp() / "data" / str(next(_data_folders))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(home))
        patch.delenv("MEMWAL_CATALOG_URL", raising=False)
        patch.delenv("MEMWAL_CATALOG_SNAPSHOT", raising=False)
        yield


@pytest.fixture
def stored(request: pytest.FixtureRequest) -> Stored:
    """Return what holds renderings against those in the folder ``renderings`` beside the test."""
    return Stored(request.path.parent / "renderings", request.config.getoption("renew"))


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    """Return a store on the local disk that can fail."""
    return FaultyStore(open_store(tmp_path / "table", durable=False))


@pytest.fixture
def secrecy(caplog: pytest.LogCaptureFixture) -> Secrecy:
    """Return what finds out whether a marker is shown, in logs at their most talkative too."""
    caplog.set_level(logging.DEBUG)
    return Secrecy(caplog)


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Emulator]:
    """Return a running S3 server, in which each test makes buckets of its own."""
    with running_emulator(tmp_path_factory.mktemp("emulator")) as running:
        yield running


@pytest.fixture
def webhook_server() -> Iterator[WebhookServer]:
    """Return a running webhook."""
    with running_webhook() as running:
        yield running


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a catalog on SQLite that is not there yet."""
    return f"sqlite:///{tmp_path / 'catalog.db'}"


@pytest.fixture
def catalog(url: str) -> Iterator[Catalog]:
    """Return an empty catalog on SQLite."""
    from support.stores.empty_catalog import put_empty_catalog

    from memwal.catalog import Catalog

    put_empty_catalog(Path(url.removeprefix("sqlite:///")))
    catalog = Catalog(url)
    yield catalog
    catalog.close()


@pytest.fixture(scope="session")
def _empty_tables(tmp_path_factory: pytest.TempPathFactory) -> dict[int | None, Path]:
    """Return the empty tables that most tests get a copy of, by their buckets.

    They are made before a test could change how tables are made.
    """
    home = tmp_path_factory.mktemp("empty")
    made: dict[int | None, Path] = {}
    for buckets in (None, 2, 3, 4):
        made[buckets] = home / str(buckets)
        spec = _spec(["id"], buckets)
        memwal.create(made[buckets], SCHEMA, primary_key=["id"], region_spec=spec)
    return made


def _spec(primary_key: Sequence[str], buckets: int | None) -> memwal.RegionSpec:
    if buckets is None:
        return memwal.RegionSpec.unsharded()
    return memwal.RegionSpec.bucket(primary_key[0], buckets)


@pytest.fixture
def make_table(tmp_path: Path, _empty_tables: dict[int | None, Path]) -> MakeTable:
    """Return a function that makes local tables.

    ``make_table(schema=SCHEMA, primary_key=("id",), buckets=None, **options)``; with ``buckets``
    the table is divided by its first key column, else it has one region. The rest is given to
    ``memwal.create``.
    """
    numbers = itertools.count()

    def make(
        schema: pa.Schema = SCHEMA,
        *,
        primary_key: Sequence[str] = ("id",),
        buckets: int | None = None,
        **options: Any,
    ) -> memwal.Table:
        uri = str(tmp_path / f"table-{next(numbers)}")
        usual = schema is SCHEMA and tuple(primary_key) == ("id",) and not options
        if usual and buckets in _empty_tables:
            shutil.copytree(_empty_tables[buckets], uri, copy_function=shutil.copyfile)
            return memwal.open(uri)
        options.setdefault("region_spec", _spec(primary_key, buckets))
        return memwal.create(uri, schema, primary_key=list(primary_key), **options)

    return make


@pytest.fixture
def table(make_table: MakeTable) -> memwal.Table:
    """Return an empty table with one region."""
    return make_table()


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> FaultyStores:
    """Wrap every store that is opened during the test: ``faults.of(table.location)``.

    Ask for it before ``table`` or ``make_table`` to have the table's first requests wrapped too;
    what was opened before is opened again, wrapped, by whoever asks the location for it.
    """
    return FaultyStores(monkeypatch)


@pytest.fixture
def quick_faults(monkeypatch: pytest.MonkeyPatch) -> FaultyStores:
    """Do as ``faults`` does, without fsync: for tests that make a table for each of many steps."""
    return FaultyStores(monkeypatch, durable=False)


@pytest.fixture(scope="module")
def of_few_rows() -> Iterator[None]:
    """Have generations of few rows carry every index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintained, "FEW_ROWS", 0)
        yield


@pytest.fixture
def search_in_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return a function that has generations searched in memory at once, or never."""

    def choose(in_memory: bool) -> None:
        monkeypatch.setattr(vector_memory, "_SEARCHES_BEFORE", 0 if in_memory else 1_000_000)

    return choose
