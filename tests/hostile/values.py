"""What people, and those who mean harm, write into fields, files and addresses."""

import copy
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

NASTY: Final = (
    "",
    " ",
    "\0",
    "a\0b",
    "\n",
    "a\nb",
    "\r\nSet-Cookie: a=b",
    "\x1b[2J\x1b]0;title\x07",
    "\u202etxt.exe",
    "\ud800",
    "a\udcffb",
    "\U0001f984",
    "\u0130",
    "\u0663",
    "\u00b2",
    ".",
    "..",
    "/",
    "//",
    "../../etc/passwd",
    "/etc/passwd",
    "/dev/zero",
    "~root",
    "C:\\x",
    "%",
    "%00",
    "%2e%2e%2f",
    "%252e%252e",
    "file:///etc/passwd",
    "http://[",
    "https://169.254.169.254/latest",
    "{{ 7 * 7 }}",
    "{% for n in range(10) %}x{% endfor %}",
    "${HOME}",
    "$(id)",
    "`id`",
    "{0.__class__}",
    "%s%n%(x)s",
    "__import__('os').system('id')",
    "!!python/object/apply:os.system [id]",
    "<script>alert(1)</script>",
    "'",
    '"',
    "`",
    "\\",
    "'; drop table t; --",
    "/* ' */",
    "--help",
    "-",
    "--",
    "@/etc/passwd",
    "none",
    "null",
    "nan",
    "NaN",
    "inf",
    "-1",
    "0",
    "1e400",
    "9" * 30,
    "9" * 5_000,
    "a" * 5_000,
    "[" * 3_000,
    "(" * 300,
    "-" * 300,
)
"""Texts that somebody once broke something with."""

NUMBERS: Final = (
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    10**18,
    10**30,
    10**400,
    -(10**400),
    0.5,
    1e-320,
    1e15,
    1e300,
    float("inf"),
    float("-inf"),
    float("nan"),
)
"""Numbers at the ends of types, and beyond."""

T = TypeVar("T")


def one_of_these(*values: T) -> SearchStrategy[T]:
    """One of some values, which may be large: hypothesis would write them out to name them."""
    return st.integers(0, len(values) - 1).map(lambda number: values[number])


def texts(*more: str) -> SearchStrategy[str]:
    """Any text: short ones at random, nasty ones, and the given ones, also joined."""
    known = one_of_these(*NASTY, *more)
    return known | st.text(max_size=12) | st.lists(known, min_size=2, max_size=3).map("".join)


def words(*known: str) -> SearchStrategy[str]:
    """Texts of the given pieces in any order: often nearly right."""
    return st.lists(st.sampled_from(known), max_size=14).map("".join)


def numbers() -> SearchStrategy[int | float]:
    """Any number."""
    return one_of_these(*NUMBERS) | st.integers(-1_000, 1_000) | st.floats()


def leaves() -> SearchStrategy[Any]:
    """What JSON holds, but for lists and objects; and what YAML has besides."""
    return st.none() | st.booleans() | numbers() | texts()


def trees() -> SearchStrategy[Any]:
    """What JSON holds."""
    return st.recursive(
        leaves(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(), inner, max_size=3),
        max_leaves=5,
    )


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def mutated(*documents: Any) -> SearchStrategy[Any]:
    """One of some documents with one to three of its parts replaced, left out or added."""
    changes = st.lists(
        st.tuples(
            st.integers(0, 10_000), st.sampled_from(("set", "drop", "add")), texts(), trees()
        ),
        min_size=1,
        max_size=3,
    )
    return st.builds(_changed, one_of_these(*documents), changes)


def _changed(document: Any, changes: list[tuple[int, str, str, Any]]) -> Any:
    found = copy.deepcopy(document)
    for number, change, name, value in changes:
        places = list(_places(found))
        if not places:
            return value
        container, key = places[number % len(places)]
        if change == "set":
            container[key] = copy.deepcopy(value)
        elif change == "drop":
            del container[key]
        elif isinstance(container, dict):
            container[name] = copy.deepcopy(value)
        else:
            container.append(copy.deepcopy(value))
    return found


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield value, key
        yield from _places(inner)
