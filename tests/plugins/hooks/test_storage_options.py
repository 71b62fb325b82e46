import asyncio
import json
import stat
from pathlib import Path

import pytest
from airflow.exceptions import AirflowNotFoundException
from memwal_airflow.hooks.storage_options import options_file, read_options, read_options_async

from memwal.errors import InvalidInputError

OPTIONS = {"aws_access_key_id": "me", "aws_secret_access_key": "hunter2"}


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> str:
    text = json.dumps({"conn_type": "generic", "extra": {**OPTIONS, "allow_http": True}})
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", text)
    return "airflow:lake"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "options.json"
    path.write_text(json.dumps({**OPTIONS, "allow_http": True}))
    return str(path)


def test_no_reference_means_no_options() -> None:
    assert read_options(None) is None
    assert asyncio.run(read_options_async(None)) is None


def test_files_and_connections_give_the_same_texts(file: str, connection: str) -> None:
    expected = {**OPTIONS, "allow_http": "true"}
    assert read_options(file) == expected
    assert read_options(connection) == expected
    assert asyncio.run(read_options_async(file)) == expected
    assert asyncio.run(read_options_async(connection)) == expected


def test_a_command_line_gets_a_private_file(file: str, connection: str, tmp_path: Path) -> None:
    assert options_file(None, tmp_path) is None
    assert options_file(file, tmp_path) == file
    folder = tmp_path / "private"
    folder.mkdir()
    made = options_file(connection, folder)
    assert made is not None
    assert stat.S_IMODE(Path(made).stat().st_mode) == 0o600
    assert read_options(made) == read_options(connection)


@pytest.mark.parametrize("content", ["[1]", '{"a": {"b": "hunter2"}}', "{hunter2"])
def test_wrong_content_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "options.json"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=r"options\.json") as caught:
        read_options(str(path))
    assert "hunter2" not in str(caught.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"none\.json"):
        read_options(str(tmp_path / "none.json"))
    with pytest.raises(AirflowNotFoundException):
        read_options("airflow:nowhere")
