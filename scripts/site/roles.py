"""Docstrings name things as Sphinx does; the site is made of Markdown."""

from __future__ import annotations

import re
from typing import Any

from griffe import AliasResolutionError, Extension, NameResolutionError, Object

_ROLE = re.compile(r":(?:class|meth|func|data|attr|mod|exc|obj|const):`(~?)([^`<]+)`")


class Roles(Extension):
    """Makes ``:class:`X``` a link to ``X`` where the site has it, and code where it has not."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(
                lambda role: _linked(obj, role[2], short=bool(role[1])), obj.docstring.value
            )


def _linked(where: Object, name: str, *, short: bool) -> str:
    try:
        target = where.resolve(name)
    except (AliasResolutionError, NameResolutionError):
        target = name
    shown = name.rpartition(".")[2] if short else name
    return f'<autoref optional identifier="{target}"><code>{shown}</code></autoref>'
