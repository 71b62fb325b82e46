"""memwal fleet events: what is wrong, and a webhook that hears of it once."""

import pytest

from memwal.catalog import Catalog

SECRET = "marker-90ce"


@pytest.fixture
def catalog(catalog: Catalog) -> Catalog:
    for name in ("flights", "trains"):
        catalog.register(name, uri=f"/{name}", owner="transport")
        catalog.backoffs.record_failure(name, "status", "NoSuchBucket")
    return catalog


def test_what_is_wrong_is_shown_each_time(cli, catalog):
    for _ in range(2):
        (flights, trains) = cli("fleet", "events", "--json").json["events"]
        assert (flights["kind"], flights["table"]) == ("job_failed", "flights")
        assert trains["critical"] is False
    shown = cli("fleet", "events", "--table", "trains").stdout
    assert "NoSuchBucket" in shown
    assert "flights" not in shown
    catalog.backoffs.clear_failure("trains", "status")
    assert cli("fleet", "events", "--table", "trains", "--json").json == {"events": []}
    assert cli("fleet", "events", "--table", "ships").code != 0


def test_a_webhook_hears_of_it_once(cli, catalog, webhook_server, tmp_path):
    path = tmp_path / "webhook"
    path.write_text(f"{webhook_server.address}/{SECRET}\n")
    command = ("fleet", "events", "--webhook-file", path, "--pause-seconds", 0)
    told = cli(*command, "--json")
    assert len(told.json["events"]) == 2
    assert cli(*command, "--json").json == {"events": []}
    catalog.backoffs.clear_failure("trains", "status")
    assert "trains" in cli(*command).stdout
    assert len(webhook_server.received) == 2
    assert ":white_check_mark: trains" in webhook_server.texts[1]
    assert len(cli(*command, "--channel", "others", "--json").json["events"]) == 1


def test_a_webhook_that_refuses_is_an_error_without_its_address(
    cli, catalog, webhook_server, tmp_path
):
    path = tmp_path / "webhook"
    path.write_text(f"{webhook_server.address}/{SECRET}")
    webhook_server.answers.append((403, {}))
    for arguments in ((), ("--debug",)):
        webhook_server.answers[:] = [(403, {})]
        failed = cli(*arguments, "fleet", "events", "--webhook-file", path)
        assert failed.code == 1
        assert "403" in failed.stderr
        assert SECRET not in failed.stderr + failed.stdout
    assert cli("fleet", "events", "--webhook-file", tmp_path / "none").code == 2
    assert len(cli("fleet", "events", "--webhook-file", path, "--json").json["events"]) == 2
