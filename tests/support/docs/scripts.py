"""The programs of ``scripts``, as modules."""

import importlib
from types import ModuleType

import pytest
from support.docs.pages import ROOT


def script(name: str) -> ModuleType:
    """Import a program of ``scripts``, which finds those beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        return importlib.import_module(name)
