import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update
from support.data.postgres import PostgresServer
from support.processes import running_python
from support.waiting import until

import memwal.catalog.database as database_module
from memwal.catalog import Catalog
from memwal.catalog.database import Database
from memwal.catalog.leases import Leases, default_holder
from memwal.catalog.models import LeaseRow
from memwal.errors import (
    ConflictError,
    InvalidInputError,
    LeaseLostError,
    ObjectNotFoundError,
    StoreAccessError,
)

CHILD = Path(__file__).with_name("_lease_child.py")
LONG = timedelta(minutes=5)


@pytest.fixture
def leases(database: Database) -> Leases:
    return Leases(database)


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(each_url: str) -> Iterator[Start]:
    """Return a function that starts a child, which does not outlive the test."""
    with ExitStack() as stack:
        yield lambda mode, *arguments: stack.enter_context(
            running_python(CHILD, mode, each_url, *arguments)
        )


def says(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def is_refused(leases: Leases) -> bool:
    try:
        leases.acquire("t", ttl=LONG).release()
    except ConflictError:
        return True
    return False


def test_a_lease_is_had_by_one(leases: Leases) -> None:
    with leases.acquire("t", holder="a", ttl=LONG) as lease:
        lease.check()
        assert not lease.lost
        # The same name does not make the same holder.
        with pytest.raises(ConflictError, match=r"\bt\b.*\ba\b"):
            leases.acquire("t", holder="a")
        leases.acquire("u").release()
    with leases.acquire("t", holder="b") as again:
        assert again.token == 2


def test_tokens_grow_for_ever(leases: Leases) -> None:
    tokens = []
    for _ in range(5):
        with leases.acquire("t") as lease:
            tokens.append(lease.token)
        assert leases.list() == []
    assert tokens == [1, 2, 3, 4, 5]
    assert leases.list(held_only=False)[0].token == 5


def test_the_list_tells_who(leases: Leases) -> None:
    with leases.acquire("t", ttl=LONG), leases.acquire("s", holder="x", ttl=LONG):
        first, second = leases.list()
        assert (first.resource, first.holder, first.held) == ("s", "x", True)
        assert second.holder == default_holder()
        assert second.expires_at is not None
        assert second.expires_at - second.acquired_at == LONG
        assert first.to_dict()["ttl_seconds"] == 300
    assert [one.expires_at for one in leases.list(held_only=False)] == [None, None]


def test_a_released_lease_is_over(leases: Leases) -> None:
    lease = leases.acquire("t")
    lease.release()
    lease.release()
    assert lease.lost
    with pytest.raises(LeaseLostError):
        lease.check()


def test_waiting_takes_the_lease_as_soon_as_it_is_free(leases: Leases) -> None:
    first = leases.acquire("t", ttl=LONG)
    threading.Timer(0.2, first.release).start()
    with leases.acquire("t", ttl=timedelta(seconds=1), wait=timedelta(seconds=240)) as second:
        assert second.token == 2


def test_durations_may_be_seconds(leases: Leases) -> None:
    with leases.acquire("t", ttl=60, wait=0.5), pytest.raises(ConflictError):
        leases.acquire("t", ttl=60.0, wait=0)
    for wrong in (0.1, -1, float("inf")):
        with pytest.raises(InvalidInputError):
            leases.acquire("t", ttl=wrong)


@pytest.mark.parametrize("resource", ["", "x" * 501])
def test_resources_have_a_length(leases: Leases, resource: str) -> None:
    with pytest.raises(InvalidInputError):
        leases.acquire(resource)


def test_a_holder_goes_on_while_the_database_refuses_writes(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = []

    def refuse(*_: object) -> None:
        refusals.append("as a standby does until it is the primary")
        raise StoreAccessError(refusals[-1])

    with monkeypatch.context() as patched:
        patched.setattr(Leases, "renew", refuse)
        lease = catalog.leases.acquire("t", ttl=timedelta(seconds=12))
        before = catalog.leases.list()[0].expires_at
        until(lambda: bool(refusals))
    until(lambda: catalog.leases.list()[0].expires_at > before)
    lease.check()
    monkeypatch.setattr(Leases, "end", refuse)
    lease.release()
    assert lease.lost


@pytest.mark.few(1)
def test_a_lease_is_renewed_as_long_as_it_is_held(leases: Leases) -> None:
    # Long enough that a busy machine renews it in time; two renewals are waited for.
    with leases.acquire("t", ttl=timedelta(seconds=12)) as lease:
        first = leases.list()[0].expires_at
        until(lambda: leases.list()[0].expires_at > first + timedelta(seconds=6))
        lease.check()
        assert is_refused(leases)


def test_a_lease_that_is_taken_by_force_is_lost(leases: Leases) -> None:
    lease = leases.acquire("t", holder="a", ttl=LONG)
    with pytest.raises(ConflictError):
        leases.release("t", token=2)
    lease.check()
    assert leases.release("t", token=1).held
    with pytest.raises(LeaseLostError):
        lease.check()
    other = leases.acquire("t", holder="b", ttl=LONG)
    # What the one that lost it does at its end does not end the other's.
    lease.release()
    other.check()
    other.release()
    assert not leases.release("t").held
    with pytest.raises(ObjectNotFoundError, match="never"):
        leases.release("never")


def test_the_heartbeat_hears_of_the_loss(leases: Leases) -> None:
    lease = leases.acquire("t", ttl=timedelta(seconds=3))
    leases.release("t")
    until(lambda: lease.lost)
    lease.release()


def test_a_clock_that_was_put_back_keeps_no_ghost_alive(leases: Leases, database: Database) -> None:
    ghost = leases.acquire("t", ttl=LONG)
    with database.writing() as session:
        far = leases.list()[0].expires_at
        assert far is not None
        session.execute(update(LeaseRow).values(expires_at=far + timedelta(hours=1)))
    with leases.acquire("t") as lease:
        assert lease.token == 2
    with pytest.raises(LeaseLostError):
        ghost.check()
    ghost.release()


@pytest.mark.few(1)
def test_the_ghost_of_a_killed_process_goes_when_its_time_is_up(
    leases: Leases, start: Start
) -> None:
    child = start("hold", 6)
    assert says(child) == "1"
    assert says(child) == "in"
    child.kill()
    child.wait()
    # Renewed at most a moment ago, so that there is time for a look.
    with pytest.raises(ConflictError):
        leases.acquire("t")
    with leases.acquire("t", wait=timedelta(seconds=240)) as lease:
        assert lease.token == 2


@pytest.mark.few(1)
def test_a_process_that_was_stopped_for_too_long_notices_before_it_goes_on(
    leases: Leases, start: Start
) -> None:
    child = start("hold", 1)
    assert says(child) == "1"
    child.send_signal(signal.SIGSTOP)
    with leases.acquire("t", ttl=LONG, wait=timedelta(seconds=240)) as lease:
        assert lease.token == 2
        child.send_signal(signal.SIGCONT)
        assert child.wait(240) == 0
        lease.check()
    # "in" was written before it stopped, or by a look that had found it in force by then.
    assert child.stdout is not None
    words = child.stdout.read().split()
    assert words[-1] == "lost"


@pytest.mark.few(1)
def test_a_process_that_overslept_has_lost_its_lease_though_nobody_took_it(
    leases: Leases, start: Start
) -> None:
    child = start("hold", 1)
    assert says(child) == "1"
    child.send_signal(signal.SIGSTOP)
    until(lambda: leases.list() == [])
    # A little longer: by its own clock the lease ends no later than by the database's.
    child.send_signal(signal.SIGCONT)
    assert child.wait(240) == 0
    assert leases.list(held_only=False)[0].token == 1


@pytest.mark.few(1)
def test_processes_that_race_for_a_lease_are_never_in_it_together(
    each_catalog: Catalog, start: Start, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    children = [start("count", counter, 15) for _ in range(2)]
    tokens = [int(token) for child in children for token in child.communicate()[0].split()]
    assert [child.returncode for child in children] == [0, 0]
    assert counter.read_text() == "30"
    assert sorted(tokens) == list(range(1, 31))


@pytest.mark.slow
def test_a_holder_goes_on_while_the_server_is_gone_and_keeps_its_lease(
    postgres: PostgresServer, postgres_url: str
) -> None:
    catalog = Catalog(postgres_url)
    lease = catalog.leases.acquire("t", ttl=LONG)
    postgres.stop()
    try:
        lease.check()
    finally:
        postgres.start()
    lease.check()
    assert is_refused(catalog.leases)
    lease.release()
    assert catalog.leases.list() == []
    catalog.close()


def test_a_holder_stops_when_the_server_is_gone_for_longer_than_its_lease(
    postgres: PostgresServer, postgres_url: str
) -> None:
    catalog = Catalog(postgres_url)
    lease = catalog.leases.acquire("t", ttl=timedelta(seconds=0.9))
    postgres.stop()
    try:
        until(lambda: lease.lost)
        with pytest.raises(LeaseLostError):
            lease.check()
        lease.release()
    finally:
        postgres.start()
    # The holder counts from before its last renewal, so that it stops first.
    with catalog.leases.acquire("t", wait=240) as other:
        assert other.token == 2
    catalog.close()


def test_a_holder_goes_on_while_the_file_is_locked(
    catalog: Catalog,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    other = Catalog(url)
    lease = other.leases.acquire("t", ttl=timedelta(seconds=12))
    before = other.leases.list()[0].expires_at
    locker = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    until(lambda: "not renewed yet" in caplog.text)
    lease.check()
    assert other.leases.list()[0].expires_at == before
    locker.execute("ROLLBACK")
    locker.close()
    until(lambda: other.leases.list()[0].expires_at > before)
    lease.check()
    lease.release()
    other.close()
