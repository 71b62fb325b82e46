"""The images in docs/kubernetes.md are as it says, as far as that needs no engine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

import memwal
from memwal.cli.commands.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
GUIDE = PAGE[PAGE.index("## Images") :]
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", GUIDE, flags=re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]


def memwal_arguments() -> list[list[str]]:
    """What the guide hands to the command line, behind a container's entry point."""
    found = []
    for line in COMMANDS:
        words = shlex.split(line, comments=True)
        if "--entrypoint" not in words:
            image = [n for n, w in enumerate(words) if re.fullmatch(r"memwal(:[\d.]+)?", w)]
            found += [words[n + 1 :] for n in image if words[0] == "docker"]
    return found


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMWAL_CATALOG_URL", f"sqlite:///{tmp_path}/catalog.db")


def here(text: str, folder: Path) -> str:
    """A command or an example with a local table in place of the store's."""
    return text.replace("s3://lake", str(folder)).replace("/run/secrets", str(folder))


def test_a_table_is_made_registered_and_written(
    catalog: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lake.json").write_text("{}")
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    create, register, status = (
        arguments
        for arguments in memwal_arguments()
        if arguments[0] in {"create", "catalog"} or arguments == ["status", "flights"]
    )
    command = typer.main.get_command(app)

    def run(arguments: list[str]) -> None:
        command.main([here(word, tmp_path) for word in arguments], standalone_mode=False)

    run(["catalog", "migrate"])
    run(create)
    run(register)
    exec(compile(here(example, tmp_path), "write.py", "exec"), {})
    run(status)
    assert "merge" in capsys.readouterr().out
    table = memwal.open(str(tmp_path / "flights.lance"))
    assert table.status().backlog_generations == 4
    assert table.scan().to_table().num_rows == 1000
