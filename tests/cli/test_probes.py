"""The probes of a fleet: alive while its loop turns, ready while the catalog answers."""

import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from memwal.catalog import Catalog
from memwal.cli.commands import fleet as commands
from memwal.errors import InvalidInputError, StoreUnavailableError
from memwal.fleet import Fleet


def asked(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_ready_and_alive(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(catalog)
    with commands.answer_probes(fleet, "127.0.0.1:0") as port:
        assert port is not None
        # The catalog was not read yet.
        assert [asked(port, path) for path in ("/livez", "/readyz", "/")] == [200, 503, 404]
        fleet.run_once()
        assert asked(port, "/readyz") == 200

        def fail(*_: Any, **__: Any) -> Any:
            raise StoreUnavailableError("not now; try again later")

        monkeypatch.setattr(catalog, "list", fail)
        with pytest.raises(StoreUnavailableError):
            fleet.run_once()
        assert [asked(port, path) for path in ("/livez", "/readyz")] == [200, 503]
        monkeypatch.setattr(commands, "LIVE_SECONDS", 0.0)
        assert asked(port, "/livez") == 503
    with pytest.raises(OSError):
        asked(port, "/livez")


def test_none_without_a_port(tmp_path: Path) -> None:
    with commands.answer_probes(Fleet(Catalog(f"sqlite:///{tmp_path / 'c.db'}")), None) as port:
        assert port is None


def test_a_port_that_is_taken(catalog: Catalog) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(InvalidInputError, match=address),
            commands.answer_probes(Fleet(catalog), address),
        ):
            pass


@pytest.mark.parametrize(
    "address", ["8080", "127.0.0.1:http", "127.0.0.1:99999", "nowhere.invalid:1"]
)
def test_what_is_no_address(catalog: Catalog, address: str) -> None:
    with (
        pytest.raises(InvalidInputError, match="--probe-address"),
        commands.answer_probes(Fleet(catalog), address),
    ):
        pass
