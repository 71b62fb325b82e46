"""The reference says all that there is: each name, command, option, key, error and variable."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import commands
import errors
import policies
import pytest
from support.docs.documented import documented, found, lacking
from support.docs.pages import ROOT
from typer.main import get_command
from typer.testing import CliRunner

from memwal.catalog import Catalog, Policy
from memwal.cli.commands.app import app

CODE = [
    path
    for folder in ("memwal", "plugins/memwal_airflow", "spark_apps", "dags")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
ENVIRONMENT = (ROOT / "docs" / "reference" / "environment.md").read_text()


class TestPython:
    def test_every_public_name_is_shown(self) -> None:
        for module in (
            "memwal",
            "memwal.catalog",
            "memwal.fleet",
            "memwal.jobs.gc",
            "memwal.jobs.verify",
            "memwal.spark",
        ):
            exported = found(module).exports
            assert exported
            objects = {str(name): found(f"{module}.{name}") for name in exported}
            hidden = [
                name
                for name, one in objects.items()
                if (one.is_class or one.is_function)
                and one.path not in documented()
                and one.module.path != "memwal.errors"
            ]
            assert hidden == [], module

    def test_every_public_name_of_airflow_parts_is_shown(self) -> None:
        for module in (
            "operators.maintenance",
            "operators.verify",
            "sensors.table",
            "triggers.table",
            "hooks.memwal",
            "notifications.notifier",
        ):
            for one in found(f"memwal_airflow.{module}").classes.values():
                assert one.is_alias or one.path in documented(), one.path

    def test_every_docstring_tells_parameters_and_errors(self) -> None:
        assert len(documented()) > 200
        lacks = {path: lacking(one) for path, one in documented().items()}
        assert {path: what for path, what in lacks.items() if what} == {}


class TestCommands:
    def test_every_command_and_option_is_there(self) -> None:
        sections = dict(
            re.findall(r"^##+ (memwal[^\n]*)\n(.*?)(?=^##|\Z)", commands.markdown(), re.M | re.S)
        )
        paths = dict(all_commands(get_command(app), "memwal"))
        assert set(sections) == set(paths)
        for path, command in paths.items():
            for parameter in command.params:
                if parameter.param_type_name == "option" and not parameter.hidden:
                    for option in parameter.opts:
                        assert re.search(rf"`[^`]*{option}\b", sections[path]), (path, option)
            assert re.search(r"\w{4}", sections[path].partition("```")[0]), f"{path} says nothing"

    def test_every_option_says_what_it_is_for(self) -> None:
        for path, command in all_commands(get_command(app), "memwal"):
            for parameter in command.params:
                if not parameter.hidden:
                    assert (parameter.help or "").strip(), f"{path}: {parameter.name}"


def all_commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from all_commands(inner, f"{path} {name}")


class TestPolicy:
    keys = tuple(field.name for field in fields(Policy))

    @pytest.mark.parametrize("key", keys)
    def test_every_key_is_told_whole(self, key: str) -> None:
        (section,) = re.findall(rf"^## {key}$(.*?)(?=^## |\Z)", policies.markdown(), re.M | re.S)
        assert re.search(r"^\w.{20}", section, re.M), "what it means"
        assert "| default | " in section
        assert "| may be | " in section
        assert "| example | `memwal " in section

    def test_the_command_line_takes_every_example(
        self, catalog: Catalog, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MEMWAL_CATALOG_URL", url)
        catalog.register("flights", uri="/data/flights.lance")
        settings = re.findall("policy set flights '?(.*?)'?`", policies.markdown())
        answer = CliRunner().invoke(app, ["catalog", "policy", "set", "flights", *settings])
        assert answer.exit_code == 0, answer.output
        policy = catalog.get("flights").policy
        keys = [setting.partition("=")[0] for setting in settings]
        assert set(keys) == set(self.keys) - {"quality"}
        same = [key for key in keys if getattr(policy, key) == getattr(Policy(), key)]
        assert same == [], "an example that changes nothing"


class TestErrors:
    @pytest.mark.parametrize("kind", errors.kinds(), ids=lambda kind: kind.__name__)
    def test_every_error_says_what_it_means_and_what_to_do(self, kind: type) -> None:
        means, to_do = errors.meaning(kind)
        assert means.endswith(".")
        assert to_do.endswith(".")
        assert f"## {kind.__name__}\n" in errors.markdown()


class TestEnvironment:
    def test_every_variable_of_ours_is_told(self) -> None:
        found = {
            name
            for path in CODE
            for name in re.findall(r"(?<![A-Z_])MEMWAL_[A-Z]+(?:_[A-Z]+)*\b(?!_)", path.read_text())
        }
        assert {"MEMWAL_CATALOG_URL", "MEMWAL_CATALOG_SNAPSHOT"} <= found
        assert [name for name in found if f"| `{name}` |" not in ENVIRONMENT] == []

    def test_every_variable_that_is_read_is_told(self) -> None:
        read = {name for path in CODE for name in variables(ast.parse(path.read_text()))}
        assert {"XDG_DATA_HOME", "JAVA_HOME", "AIRFLOW_HOME", "OTEL_SDK_DISABLED"} <= read
        # Where programs are found, and the home of the user.
        untold = {name for name in read - {"PATH", "HOME"} if f"`{name}`" not in ENVIRONMENT}
        assert untold == set()


def variables(tree: ast.Module) -> Iterator[str]:
    """Names that are looked up in an environment, as they stand or by a constant of the module."""
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        key: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if "environ" in ast.unparse(node.func.value) and node.func.attr in (
                "get",
                "setdefault",
                "pop",
            ):
                key = node.args[0]
        elif isinstance(node, ast.Subscript) and "environ" in ast.unparse(node.value):
            key = node.slice
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value
        elif isinstance(key, ast.Name) and isinstance(constants.get(key.id), str):
            yield constants[key.id]
