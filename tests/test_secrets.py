"""Storage options come out nowhere, however much the store repeats of what it was asked."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.docs.command_lines import commands
from support.metrics.spans import Spans
from support.metrics.spans import traced as traced
from support.oracles.secrecy import Secrecy
from support.stores.store_gateway import Answer, Forward, Gateway, Request, gateway_before
from typer.testing import CliRunner

import memwal
from memwal.boundary.exit_codes import ExitCode
from memwal.catalog import Catalog
from memwal.cli.commands.app import app
from memwal.errors import StoreAccessError
from memwal.fleet import Fleet
from memwal.jobs.merge.job import MergeTask
from memwal.jobs.table.store_check import diagnose
from memwal.storage.location import TableLocation

OPTION = "storage_options_file"
URI = "s3://lake/flights.lance"
ARGUMENTS = {
    "table": URI,
    "uri": URI,
    "prefix": URI,
    "target": URI.replace("flights", "copy"),
    "regions": "unsharded",
    "primary_key": "id",
    "region": "00000000-0000-0000-0000-000000000001",
    "old": "id_idx",
    "version": "1",
    "name": "embeddings",
}


def repeat(request: Request, forward: Forward) -> Answer:
    """Refuse, as S3 does: with all that a request was signed with."""
    asked = "\n".join(f"{name}: {value}" for name, value in request.headers.items())
    body = (
        "<?xml version='1.0'?><Error><Code>SignatureDoesNotMatch</Code>"
        f"<Message>no match for {asked}</Message><AWSAccessKeyId>{request.access_key}"
        f"</AWSAccessKeyId><StringToSign>{asked}</StringToSign></Error>"
    )
    return Answer(403, body.encode(), (("Content-Type", "application/xml"),))


@pytest.fixture
def store() -> Iterator[Gateway]:
    """A store that refuses everything and repeats what it was asked."""
    with gateway_before("http://127.0.0.1:9") as gateway:
        gateway.rule = repeat
        yield gateway


@pytest.fixture
def options(store: Gateway, secrecy: Secrecy) -> dict[str, str]:
    return {
        "aws_access_key_id": f"AKIA{secrecy.marker}",
        "aws_secret_access_key": f"secret-{secrecy.marker}",
        "aws_session_token": f"token-{secrecy.marker}",
        "aws_region": "us-east-1",
        "aws_endpoint": store.endpoint,
        "allow_http": "true",
        "client_max_retries": "0",
    }


@pytest.fixture
def file(options: dict[str, str], tmp_path: Path) -> Path:
    path = tmp_path / "lake.json"
    path.write_text(json.dumps(options))
    return path


def required(command: Any) -> Iterator[str]:
    """What a command must be told, by the names of its parameters."""
    if command.name == "create":
        yield from ("--column", "id:int64", "--primary-key", "id")
    for one in command.params:
        # A status is of all that the catalog knows, unless it is told of one table.
        if one.required or one.name == "table":
            value = ARGUMENTS[one.name]
            yield from [value] if one.param_type_name == "argument" else [one.opts[0], value]


COMMANDS = {
    words: command
    for words, command in commands()
    if any(one.name == OPTION for one in command.params)
}


def test_no_command_shows_them(file: Path, store: Gateway, secrecy: Secrecy, traced: Spans) -> None:
    assert len(COMMANDS) > 20
    for words, command in COMMANDS.items():
        given = ["--debug", *words, *required(command), "--storage-options-file", str(file)]
        answer = CliRunner().invoke(app, given)
        assert answer.exit_code != 0, words
        assert store.taken(), f"{words} asked nothing: {answer.stderr}"
        secrecy.check(answer.stdout, answer.stderr)
    secrecy.check(*(span.to_json() for span in traced()))


def test_a_run_that_failed_keeps_none(
    file: Path, store: Gateway, secrecy: Secrecy, tmp_path: Path, traced: Spans
) -> None:
    database = tmp_path / "catalog.db"
    catalog = Catalog(f"sqlite:///{database}")
    catalog.migrate()
    catalog.register("flights", uri=URI, storage_options_ref=str(file))
    with pytest.raises(StoreAccessError), catalog.record_run("flights", "merge"):
        memwal.open(URI, storage_options=json.loads(file.read_text()))
    Fleet(catalog).run_once()
    assert store.taken()
    (run,) = catalog.runs()
    assert run.error is not None
    assert "SignatureDoesNotMatch" in run.error
    (failed,) = catalog.backoffs.failed_jobs()
    told = [str(one) for one in (run, failed, *catalog.list())]
    for words in (["jobs", "list"], ["fleet", "status"], ["catalog", "show", "flights"]):
        answer = CliRunner().invoke(app, [*words, "--json", "--catalog", f"sqlite:///{database}"])
        assert answer.exit_code == 0, answer.stderr
        told.append(answer.stdout)
    catalog.close()
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("catalog.db*"))
    assert b"SignatureDoesNotMatch" in kept
    secrecy.check(*told, kept.decode(errors="replace"))
    secrecy.check(*(span.to_json() for span in traced()))


def test_the_doctor_says_where_credentials_come_from_only(
    options: dict[str, str], secrecy: Secrecy
) -> None:
    found = diagnose(TableLocation(URI, options))

    assert found.errors
    assert found.checks[0].name == "credentials"
    secrecy.check(json.dumps(found.to_dict()), repr(found))


def test_what_stands_for_a_table_shows_none(options: dict[str, str], secrecy: Secrecy) -> None:
    location = TableLocation(URI, options)
    task = MergeTask(location, (), 1)
    secrecy.check(repr(location), repr(task), repr(location.store), f"{location}")
    # What is sent to a worker has them: that is how it gets them.
    assert secrecy.marker.encode() in pickle.dumps(location)


def test_the_address_of_a_catalog_is_shown_without_them(secrecy: Secrecy) -> None:
    url = f"postgresql+psycopg://memwal:{secrecy.marker}@127.0.0.1:9/memwal"
    for one in (url, f"{url}?sslpassword={secrecy.marker}&passfile={secrecy.marker}"):
        answer = CliRunner().invoke(app, ["--debug", "catalog", "list", "--catalog", one])
        assert answer.exit_code == ExitCode.CONFLICT
        assert "127.0.0.1:9/memwal" in answer.stderr
        secrecy.check(answer.stdout, answer.stderr)
