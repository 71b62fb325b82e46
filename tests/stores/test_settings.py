"""Wrong settings and refusing stores: what is told, after how many requests, and that it is all."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from support.data.tables import collect_now, keys, rows, state
from support.stores.own_certificate import own_certificate
from support.stores.s3_emulator import S3Emulator
from support.stores.store_gateway import (
    Answer,
    Forward,
    Gateway,
    Request,
    Rule,
    gateway_before,
    pass_on,
    refusal,
)

import memwal
from memwal.errors import MemWalError, StoreAccessError, StoreUnavailableError, TableSetupError

# The first try and two more, which the options of the table ask for.
_TRIES = 3


def always(answer: Answer) -> Rule:
    return lambda request, forward: answer


def denied(*methods: str) -> Rule:
    """Deny what is asked with one of these methods."""

    def rule(request: Request, forward: Forward) -> Answer | None:
        return refusal(403, "AccessDenied") if request.method in methods else forward()

    return rule


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("rule", "error", "named", "most"),
    [
        (always(refusal(403, "InvalidAccessKeyId")), StoreAccessError, "InvalidAccessKeyId", 1),
        (
            always(refusal(403, "SignatureDoesNotMatch")),
            StoreAccessError,
            "SignatureDoesNotMatch",
            1,
        ),
        (always(refusal(400, "ExpiredToken")), StoreAccessError, "memwal_credentials_from", 1),
        (always(refusal(403, "RequestTimeTooSkewed")), StoreAccessError, "RequestTimeTooSkewed", 1),
        (always(refusal(400, "AuthorizationHeaderMalformed")), TableSetupError, "aws_region", 1),
        (always(Answer(301)), TableSetupError, "aws_region", 1),
        (always(refusal(503, "SlowDown")), StoreUnavailableError, "SlowDown", _TRIES),
        (always(refusal(500, "InternalError")), StoreUnavailableError, "InternalError", _TRIES),
        (lambda request, forward: None, StoreUnavailableError, None, _TRIES),
        (denied("LIST"), StoreAccessError, "AccessDenied", 1),
    ],
)
def test_opening_a_table_that_the_store_refuses(
    table: memwal.Table,
    gateway: Gateway,
    rule: Rule,
    error: type[MemWalError],
    named: str | None,
    most: int,
) -> None:
    gateway.rule = rule
    gateway.taken()

    with pytest.raises(error, match=named):
        memwal.open(table.uri, storage_options=table.location.storage_options)

    assert len(gateway.taken()) == most


def _nobody(table: memwal.Table) -> str:
    return "http://127.0.0.1:1"


def _no_name(table: memwal.Table) -> str:
    return "http://no-such-host.invalid"


def _no_tls(table: memwal.Table) -> str:
    return table.location.storage_options["aws_endpoint"].replace("http:", "https:")


@pytest.mark.parametrize(
    ("endpoint", "named"),
    [(_nobody, "port"), (_no_name, "host"), (_no_tls, "allow_http")],
)
def test_an_endpoint_that_is_none(
    table: memwal.Table, endpoint: Callable[[memwal.Table], str], named: str
) -> None:
    options = {**table.location.storage_options, "aws_endpoint": endpoint(table)}

    with pytest.raises(StoreUnavailableError, match=named):
        memwal.open(table.uri, storage_options={**options, "client_max_retries": "1"})


def test_a_certificate_that_nobody_knows(table: memwal.Table, tmp_path: Path) -> None:
    options = dict(table.location.storage_options)
    with gateway_before(options["aws_endpoint"], own_certificate(tmp_path / "own.pem")) as gateway:
        options |= {"aws_endpoint": gateway.endpoint, "client_max_retries": "0"}

        with pytest.raises(StoreUnavailableError):
            memwal.open(table.uri, storage_options=options)

        trusting = {**options, "allow_invalid_certificates": "true"}
        assert memwal.open(table.uri, storage_options=trusting).scan().to_table().num_rows == 0


def test_a_store_that_never_answers(table: memwal.Table) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        options = {**table.location.storage_options, "aws_endpoint": endpoint}

        with pytest.raises(StoreUnavailableError, match="timeout"):
            memwal.open(
                table.uri,
                storage_options={**options, "timeout": "200ms", "client_max_retries": "1"},
            )


def test_a_bucket_that_is_none(emulator: S3Emulator) -> None:
    with pytest.raises(TableSetupError):
        memwal.open("s3://no-such-bucket/t", storage_options=emulator.storage_options)


@pytest.mark.slow
def test_a_table_that_may_only_be_read(table: memwal.Table, gateway: Gateway) -> None:
    table.upsert(rows({1: 1}))
    gateway.rule = denied("PUT", "POST", "DELETE")

    reader = memwal.open(table.uri, storage_options=table.location.storage_options)
    assert state(reader.scan().to_table()) == {1: 1}
    assert state(reader.lookup(keys(1)).to_table()) == {1: 1}
    with pytest.raises(StoreAccessError):
        reader.writer().upsert(rows({2: 2}))
    with pytest.raises(StoreAccessError):
        reader.merge()

    gateway.rule = pass_on
    assert table.merge().warnings == ()
    assert state(table.base().dataset.to_table()) == {1: 1}


@pytest.mark.slow
def test_what_may_not_be_deleted_stays_and_is_told(table: memwal.Table, gateway: Gateway) -> None:
    table.upsert(rows({1: 1}))
    table.checkpoint()
    gateway.rule = denied("POST", "DELETE")

    def collect() -> tuple[str, ...]:
        return collect_now(table).warnings

    warnings = [warning for _ in range(2) for warning in collect()]
    assert any("AccessDenied" in warning for warning in warnings)
    assert state(table.scan().to_table()) == {1: 1}
    gateway.rule = pass_on
    assert collect() == ()
