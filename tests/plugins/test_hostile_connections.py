"""Connections, and parameters of runs, in which anything may stand."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hostile.harness import SECRET, Area, check_secret, fuzz, safely, survey
from hostile.values import mutated, one_of_these, texts, trees
from hypothesis import strategies as st
from memwal_airflow.hooks import connection
from memwal_airflow.hooks.connection import storage_options
from memwal_airflow.operators.base import region_ids
from memwal_airflow.run_params import includes, run_params

from memwal.errors import MemWalError


@dataclass
class Connection:
    """What is read of a connection of Airflow's."""

    conn_type: str | None
    extra_dejson: dict[str, Any]
    login: str | None = "AKIA"
    password: str | None = SECRET
    host: str | None = None
    conn_id: str = field(default="lake", init=False)


_EXTRAS: tuple[dict[str, Any], ...] = (
    {"aws_region": "r", "secret_options": json.dumps({"timeout": "1s"}), "test_uri": "/x"},
    {"region_name": "r", "service_config": {"s3": {"endpoint_url": "http://h"}}},
    {"assume_role_kwargs": {}, "assume_role_method": "assume_role", "endpoint_url": "http://h"},
    {"keyfile_dict": {"private_key": SECRET}, "project": "p", "is_anonymous": True},
    {"connection_string": f"AccountName=a;AccountKey={SECRET}", "tenant_id": "t"},
)
_HOSTS = ("", "h", "https://a.blob.core.windows.net/c", "[")
_TYPES = ("memwal", "aws", "google_cloud_platform", "wasb", "generic", None)


def _connections() -> st.SearchStrategy[Connection]:
    extra = mutated(*_EXTRAS).filter(lambda value: isinstance(value, dict))
    return st.builds(
        Connection,
        one_of_these(*_TYPES),
        extra.map(_without_identity),
        st.none() | texts(),
        st.none() | st.just(SECRET),
        st.none() | one_of_these(*_HOSTS),
    )


def _without_identity(extra: dict[str, Any]) -> dict[str, Any]:
    """Nobody is asked for the credentials of a role."""
    asked = ("role", "profile", "token_file")
    return {name: value for name, value in extra.items() if not any(a in name for a in asked)}


def _read(_: Any, connection: Connection) -> None:
    found = safely(lambda: storage_options(connection))
    if not isinstance(found, MemWalError):
        assert all(isinstance(value, str) for value in found.values())


def _ask(_: Any, params: Any) -> None:
    """As Airflow does: what the form lets through is taken."""
    form = run_params()
    taken: dict[str, Any] = {}
    for name, value in params.items():
        try:
            taken[name] = form.get_param(name).resolve(value)
        except Exception as error:
            check_secret(str(error), where="the form")
    safely(lambda: includes(taken, "merge"))
    safely(lambda: region_ids(taken.get("regions") or ()))


_PARAMS = {"jobs": ["merge"], "regions": ["0" * 8 + "-0000" * 3 + "-" + "0" * 12], "force": True}
AREAS = (
    Area("connections", _connections(), _read, "parse_options"),
    Area(
        "parameters",
        mutated(_PARAMS, {"regions": [f"{_PARAMS['regions'][0]}\n"]})  # type: ignore[index]
        .filter(lambda value: isinstance(value, dict))
        .map(lambda given: {k: v for k, v in given.items() if k in (*_PARAMS, "dry_run")}),
        _ask,
        "includes",
    ),
    Area("regions", st.lists(trees(), max_size=2), lambda _, r: safely(lambda: region_ids(r)), ""),
)


@pytest.mark.parametrize("area", AREAS, ids=str)
def test_an_area(area: Area, tmp_path: Any) -> None:
    fuzz(area, tmp_path, examples=30)


@pytest.mark.slow
@pytest.mark.parametrize("area", AREAS, ids=str)
def test_an_area_at_length(area: Area, tmp_path: Any) -> None:
    fuzz(area, tmp_path, examples=500)


def test_an_area_notices(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(*_: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(connection, "parse_options", careless)
    found = survey(AREAS[0], tmp_path, examples=30, number=1)
    assert any("KeyError" in place for place in found)
