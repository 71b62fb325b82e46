"""The services of one machine: valid, closed to other machines, and their programs exist."""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose
from cryptography.fernet import Fernet
from sqlalchemy import create_engine, make_url, text
from support.data.postgres import PostgresServer

from memwal.version import __version__ as VERSION

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
# As an engine does, which nothing is set for.
TEXT = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (DOCKER / "compose.yaml").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = {name: each for name, each in SERVICES.items() if each["image"].startswith("memwal")}
MAKE_SECRETS = DOCKER / "compose" / "make_secrets.py"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    subprocess.run([sys.executable, MAKE_SECRETS, "--folder", folder], check=True)
    return folder


def test_it_is_what_the_specification_allows() -> None:
    # The reader knows either a tag or a digest; engines know both.
    checked = PyCompose.from_json(re.sub(r":[\w.-]+@sha256", "@sha256", json.dumps(COMPOSE)))
    checked.validate()
    assert set(checked.service_names()) == set(SERVICES)


def test_images_are_of_this_version_or_pinned() -> None:
    assert {each["image"].partition(":")[0] for each in OWN.values()} == {
        "memwal",
        "memwal-spark",
        "memwal-airflow",
    }
    assert {each["image"].partition(":")[2] for each in OWN.values()} == {VERSION}
    others = [each["image"] for name, each in SERVICES.items() if name not in OWN]
    assert len(others) == 2
    assert all(re.fullmatch(r"docker\.io/[\w/]+:[\w.-]+@sha256:[0-9a-f]{64}", i) for i in others)


def test_only_this_machine_reaches_it() -> None:
    published = {name: each["ports"] for name, each in SERVICES.items() if "ports" in each}
    assert set(published) == {"airflow-api-server", "store"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert not any("network_mode" in each or "privileged" in each for each in SERVICES.values())


@pytest.mark.parametrize("name", [*OWN, "store"])
def test_a_service_can_do_no_more_than_it_must(name: str) -> None:
    assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert SERVICES[name]["security_opt"] == ["no-new-privileges:true"]


def test_no_secret_stands_in_it() -> None:
    suspicious = re.compile(r"PASS|SECRET|TOKEN|KEY|CREDENTIAL|CONN|URL", re.IGNORECASE)
    found = {
        (name, key): value
        for name, each in SERVICES.items()
        for key, value in each.get("environment", {}).items()
        if suspicious.search(key)
    }
    assert len(found) > 10
    for (name, key), value in found.items():
        plain = key == "AIRFLOW__CORE__EXECUTION_API_SERVER_URL"
        users = key == "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
        secret = re.fullmatch(r"(?:cat )?/run/secrets/([\w.]+)", value)
        assert plain or users or secret, (name, key)
        if secret:
            assert key.endswith(("_CMD", "_FILE"))
            assert secret.group(1) in SERVICES[name]["secrets"]


def test_secrets_are_used_defined_and_made(secrets: Path) -> None:
    defined = {name: entry["file"] for name, entry in COMPOSE["secrets"].items()}
    used = {secret for each in SERVICES.values() for secret in each.get("secrets", [])}
    made = {path.name for path in secrets.iterdir()}
    assert used == set(defined) == made
    assert defined == {name: f"secrets/{name}" for name in made}
    ignored = subprocess.run(
        ["git", "check-ignore", "docker/secrets/catalog_url"], cwd=ROOT, capture_output=True
    )
    assert ignored.returncode == 0


def commands() -> Iterator[tuple[str, list[str]]]:
    """What services run, without the entry point, and with what a shell in between starts."""
    for name, each in OWN.items():
        command = each.get("command", [])
        if command[:1] == ["bash"]:
            *_, last = command[-1].strip().splitlines()
            command = last.removeprefix("exec ").split()
        yield name, command


@pytest.mark.slow
def test_commands_of_airflow_exist() -> None:
    wanted = [command[1:] for _, command in commands() if command[:1] == ["airflow"]]
    assert len(wanted) == 5
    script = (
        "import json, sys; from airflow.cli.cli_parser import get_parser\n"
        "for command in json.loads(sys.argv[1]): get_parser().parse_args(command)"
    )
    environ = {**os.environ, "AIRFLOW__CORE__UNIT_TEST_MODE": "False"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, json.dumps(wanted)],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_commands_of_spark_and_memwal_exist() -> None:
    import pyspark
    import typer

    from memwal.cli.commands.app import app

    spark = [command for _, command in commands() if command[:1] == ["spark-class"]]
    assert len(spark) == 2
    folder = Path(str(pyspark.__file__)).parent
    (jar,) = (folder / "jars").glob("spark-core_*.jar")
    with zipfile.ZipFile(jar) as classes:
        for _, name, *options in spark:
            assert name.replace(".", "/") + ".class" in classes.namelist()
            # Spark takes an option and its value as two words only.
            assert not any("=" in option for option in options)
    assert (folder / "bin" / "spark-class").is_file()

    group = typer.main.get_command(app)
    for name in ("catalog", "migrate"):
        group = group.commands[name]  # type: ignore[attr-defined]
    assert SERVICES["catalog-migrate"]["command"] == ["catalog", "migrate"]


def test_secrets_fit_together_and_stay(secrets: Path) -> None:
    def read(name: str) -> str:
        return (secrets / name).read_text()

    database, catalog = make_url(read("airflow_database_url")), make_url(read("catalog_url"))
    assert (database.password, database.host) == (read("postgres_password"), "postgres")
    assert (catalog.password, catalog.username) == (read("catalog_password"), "memwal")
    assert database.drivername == catalog.drivername == "postgresql+psycopg"
    Fernet(read("airflow_fernet_key"))
    lake = json.loads(read("lake.json"))
    assert lake["aws_secret_access_key"] == read("store_secret_key")
    assert lake["aws_access_key_id"] == read("store_access_key")
    assert set(json.loads(read("airflow_passwords.json"))) == {"admin"}

    assert secrets.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {0o444}

    before = {path.name: path.read_bytes() for path in secrets.iterdir()}
    assert len(set(before.values())) == len(before)
    (secrets / "airflow_jwt_secret").unlink()
    again = subprocess.run(
        [sys.executable, MAKE_SECRETS, "--folder", secrets],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    after = {path.name: path.read_bytes() for path in secrets.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"airflow_jwt_secret"}
    assert again.stdout == f"{secrets}: airflow_jwt_secret\n"


def test_the_catalog_has_a_database_of_its_own(tmp_path: Path, secrets: Path) -> None:
    script = (DOCKER / "compose" / "catalog.sql").read_text()
    assert "/run/secrets/catalog_password" in script
    here = tmp_path / "catalog.sql"
    # The server of the tests has the role memwal already, as its superuser.
    here.write_text(script.replace("/run/secrets", str(secrets)).replace(" memwal", " keeper"))
    server = PostgresServer()
    try:
        subprocess.run(
            [
                server.program("psql"),
                *("-qX", "-v", "ON_ERROR_STOP=1", "-U", "memwal"),
                *("-h", server.folder, "-d", "postgres", "-f", here),
            ],
            check=True,
        )
        engine = create_engine(server.url("postgres"))
        with engine.connect() as connection:
            found = connection.execute(
                text(
                    "SELECT rolsuper, rolpassword LIKE 'SCRAM-SHA-256$%', datname FROM pg_authid"
                    " JOIN pg_database ON datdba = pg_authid.oid WHERE rolname = 'keeper'"
                )
            ).one()
        engine.dispose()
        assert tuple(found) == (False, True, "keeper")
    finally:
        server.close()
