"""Every command with options and arguments at random, as the program itself describes them."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hostile.addresses import refused_addresses
from hostile.harness import SECRET, Area, Broken, check_secret
from hostile.policies import POLICY, SUITE
from hostile.records import SCHEMA
from hostile.values import NUMBERS, mutated, one_of_these, texts
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from support.oracles.failures import unexpected
from typer.main import get_command
from typer.testing import CliRunner

import memwal
from memwal.boundary.exit_codes import ExitCode
from memwal.catalog import Catalog
from memwal.cli import output
from memwal.cli.commands.app import app
from memwal.exporter.server import MetricsEndpoint
from memwal.fleet import alerts
from memwal.fleet.scheduler import Fleet

Words = list[str]

# A command that serves or maintains until it is told to end.
_ENDLESS = {("fleet", "run"): ["--once"]}
_UNIT = "--_file_"
"""Stands for a file that is written before a command is run: its content follows."""


@dataclass(frozen=True)
class Command:
    """A command, and what may stand behind it.

    Attributes
    ----------
    path : tuple of str
        Names of the groups and of the command.
    parameters : tuple
        Typer's own descriptions.
    """

    path: tuple[str, ...]
    parameters: tuple[Any, ...]


def commands() -> list[Command]:
    """All of the program."""
    return list(_commands(get_command(app), ()))


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[Command]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield Command(path, tuple(command.params))
        return
    for name, one in inner.items():
        yield from _commands(one, (*path, name))


def _values(name: str, kind: str) -> SearchStrategy[str]:
    """Values of a parameter: mostly of its kind, sometimes not."""
    if kind in ("N", "SECONDS", "DAYS", "POSITION", "RUN") or name == "pause_seconds":
        number = one_of_these(*NUMBERS).map(str) | st.integers(-1, 9).map(str) | st.just("nan")
        return _mostly(number, texts())
    if kind in ("UUID", "REGION"):
        return _mostly(one_of_these(_REGION, "00000000-0000-8000-8000-00000000000f"), texts())
    if kind in ("FILE", "[FILE]", "FOLDER"):
        files = one_of_these(*(f"{_UNIT}{name}" for name in _FILES))
        return _mostly(files, texts("/", "t.lance", "/proc/self/mem"))
    if name in ("table", "uri", "target", "prefix", "quarantine_uri", "named"):
        near = one_of_these("t", "t.lance", "./t", "new.lance", ".", "memory://new")
        return _mostly(near, texts() | refused_addresses())
    return _mostly(one_of_these(*_USUAL.get(name, ("t", "id", "v_idx"))), texts())


def _mostly(usual: SearchStrategy[str], other: SearchStrategy[str]) -> SearchStrategy[str]:
    return st.one_of(usual, usual, usual, other)


_REGION = "REGION"
_USUAL = {
    "url": ("sqlite:////dev/null", "sqlite:///t.lance", "x://", f"x://u:{SECRET}@h"),
    "name": ("t",),
    "job": ("merge", "index", "compact", "snapshot", "gc", "quality"),
    "regions": ("bucket:id:4", "unsharded", "manual", "identity:t", "bucket:id:0"),
    "column": ("id:int64", "t:string", "v:float32[2]", "x:timestamp[us, X]"),
    "primary_key": ("id",),
    "policy": tuple(f"{key}={value}" for key in POLICY for value in ("1", "none", "[]")),
    "settings": tuple(f"{key}={value}" for key in POLICY for value in ("1e9", "none", "{}")),
    "storage_option": ("timeout=1s", SECRET, f"aws_token={SECRET}", f"={SECRET}"),
    "storage_options_ref": ("/x.json", "airflow:x", f"{{{SECRET}}}"),
    "maintain": ("id_idx",),
    "add": ("id_idx",),
    "state": ("succeeded",),
    "mode": ("off", "warn", "skip"),
    "row": ("all", "x/y/1"),
    "runbook_url": ("https://h/{alert}", "{alert.__class__}{0}"),
    "host": ("127.0.0.1", "256.0.0.1"),
}


def _given(parameter: Any) -> SearchStrategy[Words]:
    """A parameter as words, or none."""
    if getattr(parameter, "is_flag", False):
        return st.sampled_from(([], [*parameter.opts, *parameter.secondary_opts][:1]))
    value = _values(parameter.name, parameter.metavar or "")
    if parameter.param_type_name == "argument":
        most = 3 if parameter.nargs == -1 else 1
        return st.lists(value, min_size=1 if parameter.required else 0, max_size=most)
    option = parameter.opts[0]
    chosen = st.lists(value, min_size=1, max_size=2 if parameter.multiple else 1)
    spelt = chosen.map(lambda found: [word for one in found for word in (option, one)])
    return spelt if parameter.required else st.just([]) | spelt


def command_lines() -> SearchStrategy[Words]:
    """Calls of ``memwal``."""

    def of(command: Command) -> SearchStrategy[Words]:
        fixed = [*command.path, *_ENDLESS.get(command.path, ())]
        parts = st.tuples(*map(_given, command.parameters))
        stray = st.sampled_from([[]] * 9 + [["--nonsense"], ["\udcff"], [""], ["--"]])
        return st.builds(lambda given, more: [*fixed, *chain(*given), *more], parts, stray)

    return st.sampled_from(commands()).flatmap(of)


_FILES = {
    "options.json": mutated({"aws_secret_access_key": SECRET}).map(json.dumps) | texts(SECRET),
    "suite.yaml": mutated(SUITE[:2]).map(json.dumps) | texts("- type: x"),
    "suite.json": mutated({"expectations": SUITE[:3]}).map(json.dumps) | texts(),
    "rules.json": mutated(POLICY["quality"]).map(json.dumps) | texts(),
    "schema.json": mutated(SCHEMA).map(json.dumps) | texts(),
    "webhook.txt": texts("https://127.0.0.1:1/x"),
}


@contextmanager
def _home(folder: Path) -> Iterator[Path]:
    """A table with a backlog that the catalog knows as ``t``, in the current folder."""
    table = memwal.create(
        folder / "t.lance",
        pa.schema([pa.field("id", pa.int64(), nullable=False), ("t", pa.string())]),
        primary_key="id",
        maintained_indexes=["id_idx"],
    )
    table.upsert(pa.table({"id": [1, 2], "t": ["a", "\x1b[31m"]}))
    url = f"sqlite:///{folder / 'catalog.db'}"
    catalog = Catalog(url)
    catalog.migrate()
    catalog.register("t", uri=table.uri)
    catalog.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMWAL_CATALOG_URL", url)
        patch.setenv("REGION", str(table.region_ids()[0]))
        patch.chdir(folder)
        patch.setattr(MetricsEndpoint, "wait", lambda _: None)
        patch.setattr(alerts.time, "sleep", lambda _: None)
        patch.setattr(Fleet, "run_forever", lambda *_, **__: None)
        yield folder


def _run(folder: Path, given: tuple[Words, dict[str, str]]) -> None:
    words, contents = given
    for name, content in contents.items():
        (folder / name).write_bytes(content.encode(errors="surrogatepass"))
    known = {f"{_UNIT}{name}": str(folder / name) for name in _FILES}
    known[_REGION] = os.environ["REGION"]
    result = CliRunner().invoke(app, [known.get(word, word) for word in words])
    check_answer(result.exit_code, result.stdout, result.stderr, words)
    if (error := unexpected(result)) is not None:
        raise Broken(f"memwal {words} raised {error!r}") from error


_REFUSAL = re.compile(r"(?:.*\n)*?(?:error: .+|(?:\S.*)?Error:? .+(?:\n.*)*)\n", re.MULTILINE)


def check_answer(code: int, stdout: str, stderr: str, words: Words) -> None:
    """Hold what a command printed against what is promised of it."""
    told = f"memwal {words} ended with {code}: {stderr[-2_000:]}"
    if code not in set(ExitCode):
        raise Broken(told)
    if "Traceback" in stderr:
        raise Broken(told)
    if code == ExitCode.INPUT and not _REFUSAL.fullmatch(stderr):
        raise Broken(f"no reason: {told}")
    if sum(line.startswith("error: ") for line in stderr.splitlines()) > 1:
        raise Broken(f"several reasons: {told}")
    shown = stdout + stderr
    check_secret(shown, where=f"memwal {words}")
    if "\x1b[31m" in shown or "\x1b[2J" in shown:
        raise Broken(f"memwal {words} sends what is stored to the terminal as it is")
    if code == ExitCode.DONE and "--json" in words and not {"--help", "-h"} & set(words):
        json.loads(stdout.splitlines()[-1])


AREAS = (
    Area(
        "command lines",
        st.tuples(command_lines(), st.fixed_dictionaries(_FILES)),
        _run,
        (output, "is_unicode"),
        _home,
        examples=8,
    ),
)
