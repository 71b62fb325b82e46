"""The public names that the reference shows, and what their docstrings lack."""

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache

import griffe
from support.docs.pages import ROOT

REFERENCE = ROOT / "docs" / "reference"
PACKAGES = ("memwal", "memwal_airflow")

_SHOWN = re.compile(r"^::: (\S+)$(.*?)(?=^\S|\Z)", re.M | re.S)
_TOLD = (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.attributes)
_SELF_EVIDENT = {"self", "cls", "args", "kwargs"}
# The type, which the signature links to, tells what such a parameter is.
_TELLING_TYPE = re.compile(r"TableLocation|[A-Z]\w+Options")


@cache
def _modules() -> griffe.ModulesCollection:
    loader = griffe.GriffeLoader(
        search_paths=[str(ROOT), str(ROOT / "plugins")],
        extensions=griffe.load_extensions(str(ROOT / "scripts" / "site" / "option_fields.py")),
    )
    for name in PACKAGES:
        loader.load(name)
    loader.resolve_aliases(implicit=True)
    return loader.modules_collection


def shown() -> dict[str, str]:
    """What pages of the reference name after ``:::``, and a pattern of members that show too."""
    text = "\n".join(page.read_text() for page in sorted(REFERENCE.glob("*.md")))
    hidden = {
        name: re.findall(r'"!\^\((.+)\)\$"', options) for name, options in _SHOWN.findall(text)
    }
    without = {name for name, options in _SHOWN.findall(text) if "members: false" in options}
    return {
        name: r"(?!)" if name in without else rf"(?!_|(?:{'|'.join(patterns) or '_'})$)"
        for name, patterns in hidden.items()
    }


def found(name: str) -> griffe.Object:
    """The object of this name, through all that imports it."""
    here = _modules()[name]
    return here.final_target if isinstance(here, griffe.Alias) else here


@cache
def documented() -> dict[str, griffe.Object]:
    """Everything that the reference shows, by where it is defined."""
    return {
        one.path: one
        for name, members in shown().items()
        for one in _with_members(found(name), members)
    }


def _with_members(one: griffe.Object, members: str) -> Iterator[griffe.Object]:
    yield one
    for name, member in one.all_members.items() if one.is_module or one.is_class else ():
        exported = not (one.is_module and one.exports) or name in one.exports
        if not re.match(members, name) or not exported:
            continue
        # A module shows what it exports, a class what it inherits.
        if isinstance(member, griffe.Alias) and not (one.exports or one.is_class):
            continue
        target = member.final_target if isinstance(member, griffe.Alias) else member
        if target.is_class or target.is_function:
            yield from _with_members(target, members)


def lacking(one: griffe.Object) -> list[str]:
    """What the docstring of a module, class or function does not tell.

    What it refers to, as ``:func:`x```, and the classes above it tell for it.
    """
    if one.docstring is None:
        return [] if _overrides(one) else ["docstring"]
    above = one.mro() if isinstance(one, griffe.Class) else []
    texts = [one, *_referred(one), *(parent for parent in above if parent.docstring is not None)]
    told = {name for text in texts for name in _told(text)}
    silent = [name for name in _parameters(one) if name not in told]
    words = " ".join(text.docstring.value for text in texts if text.docstring is not None)
    return [*silent, *sorted(name for name in _raised(one) if not re.search(rf"\b{name}\b", words))]


def _referred(one: griffe.Object) -> Iterator[griffe.Object]:
    text = one.docstring.value if one.docstring is not None else ""
    for name in re.findall(r":(?:func|meth|class):`~?([\w.]+)`", text):
        try:
            target = found(one.resolve(name) if "." not in name else name)
        except (KeyError, griffe.NameResolutionError):
            continue
        if target.path in documented() and target.docstring is not None:
            yield target


def _told(one: griffe.Object) -> set[str]:
    """What its sections list, and what its text names as ``name``."""
    if one.docstring is None:
        return set()
    sections = one.docstring.parse("numpy", warnings=False)
    return set(re.findall(r"``(\w+)``", one.docstring.value)) | {
        name.strip().lstrip("*")
        for section in sections
        if section.kind in _TOLD
        for entry in section.value
        for name in entry.name.split(",")
    }


def _overrides(one: griffe.Object) -> bool:
    parent = one.parent
    return isinstance(parent, griffe.Class) and any(one.name in b.members for b in parent.mro())


def _parameters(one: griffe.Object) -> list[str]:
    """What a caller gives: arguments of a function, or of what makes a class."""
    made_by = one.members.get("__init__") if isinstance(one, griffe.Class) else one
    if not isinstance(made_by, griffe.Function):
        return []
    names = [
        parameter.name.lstrip("*")
        for parameter in made_by.parameters
        if not _TELLING_TYPE.fullmatch(str(parameter.annotation))
    ]
    return [name for name in names if name not in _SELF_EVIDENT and not name.startswith("_")]


def _raised(one: griffe.Object) -> set[str]:
    """The errors of ours that stand after ``raise`` in its own code."""
    bodies = [one]
    if isinstance(one, griffe.Class):
        makers = (one.members.get(name) for name in ("__init__", "__post_init__"))
        bodies = [maker for maker in makers if isinstance(maker, griffe.Function)]
    return {
        node.exc.func.id
        for body in bodies
        if isinstance(body, griffe.Function)
        for node in ast.walk(ast.parse(textwrap.dedent(body.source)))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
        and node.exc.func.id.endswith("Error")
    }
