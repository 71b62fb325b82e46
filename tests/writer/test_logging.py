"""Logs and stats never hold data or secrets, least of all when something fails."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from support.oracles.secrecy import Secrecy
from support.stores.faulty_store import GENERATION, WAL, FaultyStores

import memwal
from memwal.errors import InvalidInputError, MemWalError, RegionFencedError, StoreFullError

SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("text", pa.string()),
        ("n", pa.int64()),
    ]
)
OPTIONS = memwal.WriterOptions(flush_attempts=1)


@pytest.fixture
def secret(tmp_path: Path, secrecy: Secrecy, faults: FaultyStores) -> memwal.Table:
    """Return a table that is reached with a secret."""
    return memwal.create(
        str(tmp_path / "table"),
        SCHEMA,
        primary_key=["name"],
        region_spec="bucket:name:2",
        maintained_indexes=["name_idx"],
        storage_options={"aws_secret_access_key": secrecy.marker},
    )


def rows(secrecy: Secrecy, count: int = 20) -> pa.Table:
    """Rows with the marker in key and value."""
    return pa.table(
        {
            "name": [f"{secrecy.marker} {n}" for n in range(count)],
            "text": [secrecy.marker] * count,
            "n": list(range(count)),
        },
        schema=SCHEMA,
    )


def names(secrecy: Secrecy, count: int = 5) -> pa.Array:
    """Keys of some of the rows."""
    return rows(secrecy, count).column("name")


def test_an_ordinary_life_shows_nothing(secret: memwal.Table, secrecy: Secrecy) -> None:
    with secret.writer() as writer:
        writer.upsert(rows(secrecy))
        writer.delete(names(secrecy))
        writer.flush()
        writer.upsert(rows(secrecy))
        writer.lookup(names(secrecy)).to_table()
        shown = [writer.stats(), writer.stats().to_dict(), repr(writer), repr(secret)]
    secret.writer().claim()
    secrecy.check(*shown)


def test_refused_rows_are_not_shown(secret: memwal.Table, secrecy: Secrecy) -> None:
    with secret.writer() as writer:
        for wrong in (
            rows(secrecy).set_column(2, "n", pa.array([secrecy.marker] * 20)),
            rows(secrecy).append_column(secrecy.marker, pa.nulls(20)),
            rows(secrecy).set_column(0, "name", pa.nulls(20, pa.string())),
        ):
            with pytest.raises(InvalidInputError):
                writer.upsert(wrong)
        secrecy.check(writer.stats().to_dict())


def test_a_fenced_writer_shows_nothing(secret: memwal.Table, secrecy: Secrecy) -> None:
    writer = secret.writer()
    writer.upsert(rows(secrecy))
    with secret.writer() as other:
        other.claim()
    with pytest.raises(RegionFencedError):
        writer.upsert(rows(secrecy))
    with pytest.raises(RegionFencedError):
        writer.close()
    shown = writer.stats().to_dict()
    assert any(region["fenced"] and region["last_error"] for region in shown["regions"])
    secrecy.check(shown)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(lambda marker: StoreFullError("full"), id="ours"),
        pytest.param(lambda marker: OSError(f"LanceError: {marker}"), id="lance"),
        pytest.param(lambda marker: pa.ArrowInvalid(f"cannot cast {marker}"), id="arrow"),
        pytest.param(lambda marker: KeyError(marker), id="python"),
    ],
)
def test_a_failed_flush_is_logged_without_what_it_quotes(
    secret: memwal.Table,
    secrecy: Secrecy,
    faults: FaultyStores,
    error: Callable[[str], Exception],
) -> None:
    failure = error(secrecy.marker)
    with secret.writer(options=OPTIONS) as writer:
        writer.upsert(rows(secrecy))
        rule = faults.of(secret.location).fail("sync", GENERATION, failure, times=2)
        with pytest.raises(MemWalError):
            writer.flush()
        shown = writer.stats().to_dict()
    assert rule.hits == 2
    assert any("flush" in line for line in secrecy.logged())
    assert all(region["last_error"] for region in shown["regions"])
    secrecy.check(shown)


@pytest.mark.parametrize("pattern", [WAL, GENERATION])
def test_a_failing_store_shows_nothing(
    secret: memwal.Table, secrecy: Secrecy, faults: FaultyStores, pattern: str
) -> None:
    store = faults.of(secret.location)
    with secret.writer(options=OPTIONS) as writer:
        writer.upsert(rows(secrecy))
        store.fail("create", pattern, times=3)
        store.fail("sync", pattern, StoreFullError("full"), times=3)
        for call in (lambda: writer.upsert(rows(secrecy)), writer.flush):
            try:
                call()
            except MemWalError as error:
                secrecy.check(error)
        shown = writer.stats().to_dict()
        store.clear()
    secrecy.check(shown)


def test_a_failing_callback_is_logged_without_what_it_quotes(
    secret: memwal.Table, secrecy: Secrecy
) -> None:
    def fail(handle: object) -> None:
        raise KeyError(secrecy.marker)

    with secret.writer() as writer:
        writer.upsert(rows(secrecy)).add_done_callback(fail)
    assert any("callback" in line for line in secrecy.logged())
    secrecy.check()
