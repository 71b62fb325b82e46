"""The settings of Airflow's section [memwal]: the guide lists those that the code reads."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "airflow.md").read_text()


def read_by_the_code() -> set[str]:
    """Keys that are asked for as ``conf.get...(SECTION, "key", ...)``."""
    found = set()
    for path in (*ROOT.glob("plugins/**/*.py"), *ROOT.glob("dags/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("conf")),
                    args=[ast.Name("SECTION") | ast.Constant("memwal"), ast.Constant(key), *_],
                ):
                    found.add(key)
    return found


def test_the_guide_lists_all_settings() -> None:
    table = GUIDE.partition("### Settings\n")[2].partition("\n#")[0]
    listed = re.findall(r"^- `(\w+)`", table, flags=re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == read_by_the_code() != set()
