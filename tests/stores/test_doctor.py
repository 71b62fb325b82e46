"""What ``memwal doctor`` finds in stores that are fit, and in stores that are not."""

import itertools
import json
import threading
import time
import urllib.request
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path

import pytest
from support.data.tables import rows
from support.stores.s3_emulator import S3Emulator
from support.stores.store_gateway import Answer, Forward, Gateway, Request, Rule, pass_on, refusal
from typer.testing import CliRunner

import memwal
from memwal.catalog import Catalog
from memwal.cli.commands.app import app
from memwal.jobs.table import store_check
from memwal.jobs.table.store_check import CheckState, Diagnosis, StoreCheck, diagnose
from memwal.storage.location import TableLocation

CHECKS = [
    "credentials",
    "list",
    "write",
    "read",
    "put-if-absent",
    "replace",
    "clock",
    "versioning",
    "latency",
    "lance",
    "table",
    "delete",
]


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure little: what is measured is not looked at here."""
    monkeypatch.setattr(store_check, "_SAMPLES", 3)


def checks(diagnosis: Diagnosis) -> dict[str, StoreCheck]:
    return {check.name: check for check in diagnosis.checks}


@pytest.fixture
def place(emulator: S3Emulator, gateway: Gateway) -> TableLocation:
    """A place for a table in an empty bucket behind the gateway."""
    options = {**emulator.storage_options, "aws_endpoint": gateway.endpoint}
    bucket = emulator.create_bucket()
    return TableLocation(f"s3://{bucket}/t", {**options, "client_max_retries": "0"})


def test_a_fit_store_with_a_table(table: memwal.Table) -> None:
    table.upsert(rows({1: 1}))
    before = sorted(info.key for info in table.location.store.list(""))

    found = diagnose(table.location)

    assert [check.name for check in found.checks] == CHECKS
    assert {check.state for check in found.checks} == {CheckState.OK}, found.checks
    assert found.errors == 0
    assert "1 regions" in checks(found)["table"].text
    assert 0 < found.latencies["put"]["p50"] <= found.latencies["put"]["p99"]
    assert sorted(info.key for info in table.location.store.list("")) == before
    options = table.location.storage_options
    text = json.dumps(found.to_dict())
    assert options["aws_secret_access_key"] not in text
    assert "aws_access_key_id" in checks(found)["credentials"].text


@pytest.mark.slow
def test_a_place_where_no_table_is(place: TableLocation) -> None:
    found = diagnose(place)

    assert found.errors == 0
    assert checks(found)["table"].state is CheckState.OK
    assert list(place.store.list("")) == []


class Overwriting:
    """A store that does not know of conditions.

    The second and the third manifest of a data set come at the same moment, so that both are
    for the same version.
    """

    def __init__(self) -> None:
        self._arrived = itertools.count()
        self._both = threading.Barrier(2)

    def __call__(self, request: Request, forward: Forward) -> Answer | None:
        del request.headers["If-None-Match"]
        manifest = request.method == "PUT" and "/_versions/" in request.path
        if manifest and next(self._arrived) in (1, 2):
            with suppress(threading.BrokenBarrierError):
                self._both.wait(timeout=240)
        return forward()


def denied(method: str) -> Rule:
    def rule(request: Request, forward: Forward) -> Answer | None:
        return refusal(403, "AccessDenied") if request.method == method else forward()

    return rule


def test_a_store_that_overwrites(place: TableLocation, gateway: Gateway) -> None:
    gateway.rule = Overwriting()

    found = checks(diagnose(place))

    assert found["put-if-absent"].state is CheckState.ERROR
    assert "memwal_commits_in" in found["put-if-absent"].advice
    assert found["lance"].state is CheckState.ERROR
    assert found["delete"].state is CheckState.OK
    assert list(place.store.list("")) == []


@pytest.mark.parametrize(
    ("method", "failing", "missing"),
    [
        ("LIST", ["list"], ["write", "table"]),
        ("PUT", ["write"], ["read", "table"]),
        ("GET", ["read", "put-if-absent", "replace", "latency", "lance"], []),
    ],
)
def test_a_permission_that_lacks(
    place: TableLocation, gateway: Gateway, method: str, failing: list[str], missing: list[str]
) -> None:
    gateway.rule = denied(method)

    found = checks(diagnose(place))

    refused = [name for name, check in found.items() if check.state is CheckState.ERROR]
    assert refused == failing
    assert "AccessDenied" in found[failing[0]].text
    assert not set(missing) & set(found)
    gateway.rule = pass_on
    assert list(place.store.list("")) == []


@pytest.mark.slow
def test_what_cannot_be_deleted_is_named(place: TableLocation, gateway: Gateway) -> None:
    gateway.rule = denied("POST")

    found = checks(diagnose(place))["delete"]

    assert found.state is CheckState.ERROR
    (left,) = {info.key[:38] for info in place.store.list("") if info.key.startswith("_probe-")}
    assert left[:30] in found.advice


@pytest.mark.slow
def test_a_clock_that_is_wrong(place: TableLocation, gateway: Gateway) -> None:
    def late(request: Request, forward: Forward) -> Answer | None:
        answer = forward()
        told = ("Last-Modified", formatdate(time.time() + 90, usegmt=True))
        kept = tuple(pair for pair in answer.headers if pair[0].lower() != "last-modified")
        return Answer(answer.status, answer.body, (*kept, told))

    gateway.rule = late

    found = checks(diagnose(place))["clock"]

    assert found.state is CheckState.WARNING
    assert "NTP" in found.advice
    assert 88 <= int(found.text.split("+")[1].split()[0]) <= 92


@pytest.mark.slow
def test_a_bucket_that_keeps_versions(emulator: S3Emulator, place: TableLocation) -> None:
    bucket = place.uri.split("/")[2]
    body = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    request = urllib.request.Request(
        f"{emulator.endpoint}/{bucket}?versioning", data=body, method="PUT"
    )
    urllib.request.urlopen(request, timeout=30).close()

    found = checks(diagnose(place))["versioning"]

    assert found.state is CheckState.WARNING
    assert found.advice


def test_a_local_disk(tmp_path: Path) -> None:
    found = diagnose(TableLocation(str(tmp_path / "t")))

    assert found.errors == 0
    assert checks(found)["credentials"].state is CheckState.OK
    assert not (tmp_path / "t").exists()


def test_a_store_whose_commits_a_database_decides(
    tmp_path: Path, url: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMITS", url)

    found = diagnose(TableLocation(str(tmp_path / "t"), {"memwal_commits_in": "COMMITS"}))

    assert checks(found)["put-if-absent"].state is CheckState.OK
    assert checks(found)["lance"].state is CheckState.WARNING
    assert found.errors == 0


def test_the_command(place: TableLocation, gateway: Gateway, tmp_path: Path) -> None:
    options = tmp_path / "options.json"
    options.write_text(json.dumps(dict(place.storage_options)))
    arguments = ["doctor", place.uri, "--storage-options-file", str(options)]

    fit = CliRunner().invoke(app, [*arguments, "--json"])
    gateway.rule = Overwriting()
    unfit = CliRunner().invoke(app, arguments)

    assert fit.exit_code == 0, fit.output
    assert [check["name"] for check in json.loads(fit.stdout)["checks"]] == CHECKS
    assert unfit.exit_code == 1
    assert f"doctor: 2 errors; {place.uri}" in unfit.stdout
    assert place.storage_options["aws_secret_access_key"] not in fit.stdout + unfit.stdout
