"""The settings of Airflow's section [memwal]: one table has them all."""

import ast
import re
from pathlib import Path

import airflow_settings
import pytest
from memwal_airflow.provider import settings
from memwal_airflow.provider.settings import SETTINGS, Setting

from memwal.errors import InvalidInputError

ROOT = Path(__file__).resolve().parents[3]
SOURCES = {
    path: ast.parse(path.read_text())
    for path in (*ROOT.glob("plugins/**/*.py"), *ROOT.glob("dags/*.py"))
    if "node_modules" not in path.parts
}


def test_each_setting_is_read_and_only_through_the_table() -> None:
    table = {name for name, value in vars(settings).items() if isinstance(value, Setting)}
    names, elsewhere = set(), []
    for path, tree in SOURCES.items():
        if path == Path(settings.__file__):
            continue
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name):
                    names.add(name)
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("conf")),
                    args=[ast.Name("SECTION") | ast.Constant("memwal"), *_],
                ):
                    elsewhere.append(f"{path}:{node.lineno}")
    assert elsewhere == []
    assert table <= names
    assert len({setting.key for setting in SETTINGS}) == len(SETTINGS) == len(table) > 20


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_a_setting_has_its_default_and_the_type_of_it(
    setting: Setting[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"AIRFLOW__MEMWAL__{setting.key.upper()}"
    monkeypatch.delenv(variable, raising=False)
    assert setting.read() == setting.default
    monkeypatch.setenv(variable, "7")
    assert setting.read() == type(setting.default)("7")
    assert f"| `{setting.key}` |" in airflow_settings.markdown()


@pytest.mark.parametrize("name", ["DUE_WATCHERS", "DRAIN_JOBS", "DRAIN_SECONDS"])
def test_a_number_below_the_least_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"AIRFLOW__MEMWAL__{name}", "0")
    with pytest.raises(InvalidInputError):
        vars(settings)[name].read()


def test_airflow_lists_them_with_their_meaning_and_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.cli.cli_parser import get_parser

    monkeypatch.setenv("AIRFLOW__MEMWAL__DRAIN_JOBS", "9")
    guide = (ROOT / "docs" / "airflow.md").read_text()
    (command,) = re.findall(r"^airflow (config list .*)$", guide, re.M)
    arguments = get_parser().parse_args(command.split())
    arguments.func(arguments)
    lines = capsys.readouterr().out.splitlines()
    listed = dict(line[2:].split(" = ", 1) for line in lines if re.match(r"# \w+ = ", line))
    assert listed == {setting.key: str(setting.default) for setting in SETTINGS}
    assert f"# {settings.DRAIN_JOBS.description}" in lines
