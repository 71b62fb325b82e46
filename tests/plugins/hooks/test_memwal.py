"""The connection type in Airflow: its form, its hook, and what a test of it says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memwal_airflow.hooks.memwal import MemWalHook
from memwal_airflow.provider import get_provider_info
from support.processes import python_environment, run_python
from support.stores.s3_emulator import S3Emulator

from memwal.catalog import Catalog
from memwal.errors import ObjectNotFoundError

SECRET = "marker-31f0"

# As pip leaves it; Airflow takes the name of the package from there.
ENTRY_POINTS = (
    "[apache_airflow_provider]\nprovider_info = memwal_airflow.provider:get_provider_info\n"
)
LOOK = """
import json, os
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
from airflow.models import Connection
from airflow.sdk._shared.secrets_masker import redact

(meta,) = [m for m in HookMetaService.hook_meta_data() if m.connection_type == "memwal"]
connection = Connection(conn_id="lake", conn_type="memwal", extra=os.environ["EXTRA"])
os.environ["AIRFLOW_CONN_LAKE"] = connection.get_uri()
print(json.dumps({
    "name": meta.hook_name,
    "fields": meta.extra_fields,
    "hidden": [n for n, f in meta.standard_fields if f is not None and f.hidden],
    "shown": redact(json.loads(os.environ["EXTRA"])),
    "test": connection.test_connection(),
}))
"""


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MemWalHook]:
    """Return a function that makes a connection of these fields, and its hook."""

    def make(**extra: Any) -> MemWalHook:
        text = json.dumps({"conn_type": "memwal", "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", text)
        return MemWalHook("lake")

    return make


@pytest.mark.slow
def test_airflow_shows_the_form_and_tries_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "site" / "lance_memwal-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lance-memwal\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    lake = tmp_path / "lake"
    lake.mkdir()
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    extra = {name: SECRET for name, field in fields.items() if "format" in field["schema"]}
    extra |= {"secret_options": json.dumps({"token": SECRET}), "test_uri": str(lake)}
    monkeypatch.syspath_prepend(info.parent)
    settings = {"EXTRA": json.dumps(extra), "AIRFLOW__CORE__TEST_CONNECTION": "Enabled"}
    done = run_python(LOOK, env=python_environment(settings))
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["name"] == "MemWAL"
    assert set(seen["fields"]) == set(fields)
    assert seen["fields"]["aws_secret_access_key"]["schema"]["format"] == "password"
    assert {"host", "password", "login"} <= set(seen["hidden"])
    assert SECRET not in json.dumps(seen["shown"])
    assert seen["test"][0], seen["test"]
    assert SECRET not in done.stderr + done.stdout
    assert list(lake.iterdir()) == []


def test_options_of_a_connection(connect: Callable[..., MemWalHook]) -> None:
    hook = connect(aws_access_key_id="me", aws_secret_access_key=SECRET)
    options = {"aws_access_key_id": "me", "aws_secret_access_key": SECRET}
    assert hook.storage_options() == hook.get_conn() == options
    assert SECRET not in repr(hook)


def test_tables_by_address_and_by_name(
    connect: Callable[..., MemWalHook], backlog: Any, catalog: Catalog
) -> None:
    catalog.register("flights", uri=backlog.uri)
    hook = connect(timeout="60s")
    for given in (backlog.uri, "flights"):
        table = hook.table(given)
        assert table.uri == backlog.uri
        assert table.location.storage_options == {"timeout": "60s"}
    with pytest.raises(ObjectNotFoundError):
        hook.table("trains")
    assert [table.name for table in hook.catalog().list()] == ["flights"]


def test_a_test_lists_and_leaves_nothing(
    connect: Callable[..., MemWalHook], emulator: S3Emulator
) -> None:
    bucket = emulator.create_bucket()
    uri = f"s3://{bucket}/tables"
    hook = connect(**emulator.storage_options, test_uri=uri)
    fine, said = hook.test_connection()
    assert fine, said
    assert uri in said
    from memwal.storage.open import open_store

    store = open_store(f"s3://{bucket}", emulator.storage_options)
    assert list(store.list("")) == []
    store.put("tables/a", b"a")
    fine, said_of_objects = hook.test_connection()
    assert fine
    # People are told whether the address is the one they meant.
    assert said_of_objects != said
    store.delete("tables/a")


def test_what_a_test_finds_wrong(
    connect: Callable[..., MemWalHook], emulator: S3Emulator, tmp_path: Path
) -> None:
    options = {**emulator.storage_options, "aws_secret_access_key": SECRET}
    assert connect(**options).test_connection()[0]
    for extra, named in (
        ({**options, "test_uri": "s3://no-such-bucket/t"}, "no-such-bucket"),
        ({**options, "test_uri": "lake://x"}, "lake://x"),
        ({"test_uri": str(tmp_path / "none")}, str(tmp_path / "none")),
        ({**options, "secret_options": "{" + SECRET}, "secret_options"),
        ({**options, "client_max_retries": SECRET, "test_uri": "s3://b"}, "client_max_retries"),
    ):
        fine, said = connect(**extra).test_connection()
        assert not fine
        assert named in said
        assert SECRET not in said, named
    assert list(tmp_path.iterdir()) == []
