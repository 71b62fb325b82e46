"""Stores that throttle, hang up, are slow or refuse while a writer lives: what was acknowledged
stays, and what was not is said."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.data.tables import rows, state
from support.stores.store_gateway import Answer, Forward, Gateway, Request, Rule, pass_on, refusal

import memwal
from memwal.errors import (
    BackPressureError,
    OutcomeUnknownError,
    StoreAccessError,
    StoreUnavailableError,
)
from memwal.lsm.wal import claim


def first(count: int, then: Rule) -> Rule:
    """Treat so many PUTs by a rule, and pass all else on."""
    numbers = itertools.count()
    lock = threading.Lock()

    def rule(request: Request, forward: Forward) -> Answer | None:
        if request.method != "PUT":
            return forward()
        with lock:
            treated = next(numbers) < count
        return then(request, forward) if treated else forward()

    return rule


def slow_down(request: Request, forward: Forward) -> Answer | None:
    return refusal(503, "SlowDown", "Please reduce your request rate.")


def work_and_hang_up(request: Request, forward: Forward) -> Answer | None:
    forward()
    return None


def work_and_fail(request: Request, forward: Forward) -> Answer | None:
    forward()
    return refusal(500, "InternalError")


def reopened(table: memwal.Table) -> dict[int, int | None]:
    """What is in the log and the generations, as the next writer finds it."""
    with table.writer() as writer:
        writer.claim()
        return state(writer.scan().to_table())


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", [slow_down, work_and_hang_up, work_and_fail])
@pytest.mark.parametrize("count", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_a_burst_of_failures_is_waited_out(
    table: memwal.Table, gateway: Gateway, fault: Rule, count: int
) -> None:
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        gateway.rule = first(count, fault)
        writer.upsert(rows({2: 2}))
        assert state(writer.scan().to_table()) == {1: 1, 2: 2}
        writer.abort()

    gateway.rule = pass_on
    assert reopened(table) == {1: 1, 2: 2}


@pytest.mark.slow
def test_a_store_that_keeps_throttling_leaves_the_outcome_open(
    table: memwal.Table, gateway: Gateway
) -> None:
    writer = table.writer()
    writer.upsert(rows({1: 1}))
    gateway.rule = first(1_000, slow_down)
    gateway.taken()

    with pytest.raises(OutcomeUnknownError):
        writer.upsert(rows({2: 2}))

    # Five tries of ours, of three of the client's each.
    assert gateway.methods().count("PUT") == 15
    writer.abort()
    gateway.rule = pass_on
    assert reopened(table) == {1: 1}


def test_a_slow_store_is_waited_for(table: memwal.Table, gateway: Gateway) -> None:
    def slow(request: Request, forward: Forward) -> Answer | None:
        time.sleep(0.3)
        return forward()

    with table.writer() as writer:
        writer.claim()
        gateway.rule = slow
        gateway.taken()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: writer.upsert(rows({n: n})), range(8)))
        # Writes that wait for the same slow request share the next one.
        assert gateway.methods().count("PUT") <= 4
        gateway.rule = pass_on
        writer.abort()

    assert reopened(table) == {n: n for n in range(8)}


def test_credentials_that_end_stop_the_writer_and_lose_nothing(
    table: memwal.Table, gateway: Gateway
) -> None:
    writer = table.writer()
    writer.upsert(rows({1: 1}))
    gateway.rule = lambda request, forward: refusal(400, "ExpiredToken", "the token has expired")

    with pytest.raises(StoreAccessError):
        writer.upsert(rows({2: 2}))

    gateway.rule = pass_on
    writer.abort()
    assert reopened(table) == {1: 1}


def test_flushes_that_fail_hold_writes_back_and_are_made_up_for(
    table: memwal.Table, gateway: Gateway
) -> None:
    def no_generations(request: Request, forward: Forward) -> Answer | None:
        if request.method == "PUT" and "_gen_" in request.path:
            return refusal(503, "SlowDown")
        return forward()

    options = memwal.WriterOptions(
        max_memtable_rows=1, max_sealed_memtables=1, backpressure_timeout=0.5, flush_attempts=1
    )
    written = {}
    with table.writer(options=options) as writer:
        gateway.rule = no_generations
        with pytest.raises(BackPressureError):
            for key in range(20):
                writer.upsert(rows({key: key}))
                written[key] = key
        assert state(writer.scan().to_table()) == written
        gateway.rule = pass_on
        writer.flush()

    assert 0 < len(written) < 20
    assert table.checkpoint().warnings == ()
    assert state(table.base().dataset.to_table()) == written


def test_a_claim_of_a_store_that_never_answers_ends(
    table: memwal.Table, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(request: Request, forward: Forward) -> Answer | None:
        if request.method != "PUT":
            return forward()
        time.sleep(1)
        return None

    monkeypatch.setattr(claim, "_MAX_SECONDS", 0.5)
    options = {**table.location.storage_options, "timeout": "200ms", "client_max_retries": "0"}
    hurried = memwal.open(table.uri, storage_options=options)
    gateway.rule = never
    gateway.taken()

    with pytest.raises(StoreUnavailableError):
        hurried.writer().claim()

    assert gateway.methods().count("PUT") <= 4
    gateway.rule = pass_on
    assert reopened(table) == {}


@pytest.mark.slow
def test_a_merge_through_failures_is_done_or_done_again(
    table: memwal.Table, gateway: Gateway
) -> None:
    with table.writer() as writer:
        for key in range(3):
            writer.upsert(rows({key: key}))
            writer.flush()
    gateway.rule = first(8, work_and_hang_up)

    for _ in range(5):
        if not table.checkpoint().warnings and not table.status().backlog_generations:
            break
    gateway.rule = pass_on

    assert table.status().backlog_generations == 0
    assert state(table.base().dataset.to_table()) == {key: key for key in range(3)}
