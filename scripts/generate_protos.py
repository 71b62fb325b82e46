"""Generate memwal/format/_proto/ from protos/.

Usage: ``python scripts/generate_protos.py [--check]``. With ``--check`` nothing is written; the
exit code says whether the files in the tree are what protoc makes of the definitions today.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(path.name for path in (ROOT / "protos").glob("*.proto"))
OUTPUT = ROOT / "memwal" / "format" / "_proto"
HEADER = "# ruff: noqa\n# mypy: ignore-errors\n"


def generate(folder: Path) -> None:
    """Write the generated modules and their stubs to ``folder``."""
    arguments = [
        "protoc",
        f"-I{ROOT / 'protos'}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={folder}",
        f"--pyi_out={folder}",
        *SOURCES,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; its message stands above")
    for path in generated(folder):
        path.write_text(HEADER + path.read_text())


def generated(folder: Path) -> list[Path]:
    """Return the generated files in ``folder``, by name."""
    return sorted([*folder.glob("*_pb2.py"), *folder.glob("*_pb2.pyi")])


def stale() -> list[str]:
    """Return the names of files in the tree that differ from what protoc makes today."""
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        generate(fresh)
        wanted = {path.name: path.read_bytes() for path in generated(fresh)}
    found = {path.name: path.read_bytes() for path in generated(OUTPUT)}
    return sorted(
        name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description="Generate the protobuf modules of memwal.")
    parser.add_argument("--check", action="store_true", help="only compare, write nothing")
    if not parser.parse_args(arguments).check:
        generate(OUTPUT)
        return 0
    differing = stale()
    if differing:
        print(
            f"not up to date: {', '.join(differing)}; run python scripts/generate_protos.py",
            file=sys.stderr,
        )
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
