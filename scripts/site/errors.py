"""The errors, as Markdown: what each means, what to do, how the command line ends with it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import memwal.errors
from memwal.boundary.exit_codes import exit_code
from memwal.errors import MemWalError

TO_DO = "What to do: "
"""What begins the last paragraph of an error's docstring."""


def kinds() -> list[type[MemWalError]]:
    """Every error, as they stand in the module."""
    return [
        kind
        for kind in vars(memwal.errors).values()
        if inspect.isclass(kind) and issubclass(kind, MemWalError)
    ]


def meaning(kind: type[MemWalError]) -> tuple[str, str]:
    """What an error means, and what to do."""
    text = re.split(r"\n\n\w[\w ]*\n---", inspect.getdoc(kind) or "")[0]
    means, _, to_do = text.replace("``", "`").partition(TO_DO)
    return means.strip(), to_do.strip()


def markdown() -> str:
    """A section for each error."""
    return "\n".join(line for kind in kinds() for line in _section(kind))


def _section(kind: type[MemWalError]) -> Iterator[str]:
    means, to_do = meaning(kind)
    bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
    # An error is made without what only its own class needs: the exit code goes by the type.
    code = exit_code(kind.__new__(kind))
    yield f"## {kind.__name__}\n"
    yield f"{means}\n"
    yield "| | |\n|---|---|"
    yield f"| what to do | {' '.join(to_do.split())} |"
    yield f"| is a | {bases} |"
    yield f"| exit code | {code.value} |\n"
