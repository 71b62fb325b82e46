"""Print lines of product and tests and words of docs, beside those of the last tag.

Usage: ``python scripts/sizes.py``. In a clone without tags there is nothing to compare with.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections import Counter
from pathlib import PurePosixPath

_PRODUCT = {"memwal", "plugins", "spark_apps", "dags"}
_PAGES = {"README.md", "CONTRIBUTING.md"}


def main() -> None:
    """Print one line for each kind of file."""
    now = _sizes("HEAD")
    tag = _git("tag", "--list", "--sort=-creatordate", "--merged", "HEAD").split()[:1]
    before = _sizes(tag[0]) if tag else Counter()
    for kind, size in sorted(now.items()):
        then = f"   {tag[0]}: {before[kind]:,} ({size - before[kind]:+,})" if tag else ""
        print(f"{kind:18} {size:9,}{then}")


def _sizes(revision: str) -> Counter[str]:
    """Count the lines or words of each kind of file at a revision."""
    sizes: Counter[str] = Counter()
    archive = subprocess.run(["git", "archive", revision], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            path = PurePosixPath(member.name)
            top = path.parts[0]
            if not member.isfile() or path.suffix not in (".py", ".md"):
                continue
            file = files.extractfile(member)
            assert file is not None
            text = file.read()
            if path.suffix == ".py" and top in _PRODUCT and "_pb2" not in path.name:
                sizes["lines of product"] += text.count(b"\n")
            elif path.suffix == ".py" and top == "tests":
                sizes["lines of tests"] += text.count(b"\n")
            elif path.suffix == ".md" and (top == "docs" or member.name in _PAGES):
                sizes["words of docs"] += len(text.split())
    return sizes


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
