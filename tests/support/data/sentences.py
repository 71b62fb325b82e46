"""Real English sentences, and vectors that stand for what they say.

The sentences are those of the documentation inside of installed packages, gathered when a test
runs. Their vectors come from the words they have in common, or from the language model of the
example ``rag``.
"""

import importlib
import inspect
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rag.minilm import MiniLM

__all__ = ["Embed", "MiniLM", "Vectors", "by_words", "sentences"]

Vectors = npt.NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]

_MODULES = (
    *("numpy", "numpy.linalg", "numpy.random", "pyarrow", "pyarrow.compute", "pyarrow.parquet"),
    *("argparse", "asyncio", "collections", "concurrent.futures", "contextlib", "csv", "datetime"),
    *("decimal", "difflib", "email.message", "fractions", "functools", "http.client", "inspect"),
    *("itertools", "json", "logging", "mailbox", "os", "pathlib", "random", "re", "shutil"),
    *("socket", "sqlite3", "statistics", "subprocess", "tarfile", "tempfile", "textwrap"),
    *("threading", "unittest.mock", "urllib.parse", "urllib.request", "zipfile"),
)
_ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_WORDS = re.compile(r"[a-z]+")
_WORDS_DIMENSION = 48


def sentences(number: int) -> list[tuple[str, str]]:
    """So many different sentences in a fixed order, each with the package that says it."""
    found: dict[str, str] = {}
    for name in _MODULES:
        for text in _documented(importlib.import_module(name)):
            for sentence in _ENDS.split(" ".join(text.split())):
                if _is_plain(sentence):
                    found.setdefault(sentence, name.partition(".")[0])
    # In an order that has nothing to do with where they come from.
    ordered = sorted(found, key=lambda sentence: zlib.crc32(sentence.encode()))
    if len(ordered) < number:
        raise AssertionError(f"the installed packages have {len(ordered)} sentences, not {number}")
    return [(sentence, found[sentence]) for sentence in ordered[:number]]


def by_words(texts: Sequence[str]) -> Vectors:
    """Unit vectors that are near where sentences share rare words."""
    counted = [Counter(_WORDS.findall(text.lower())) for text in texts]
    holders = Counter(word for words in counted for word in words)
    vectors = np.zeros((len(texts), _WORDS_DIMENSION), np.float32)
    for row, words in enumerate(counted):
        for word, count in words.items():
            direction = np.random.default_rng(zlib.crc32(word.encode()))
            weight = count * np.log(1 + len(texts) / holders[word])
            vectors[row] += weight * direction.standard_normal(_WORDS_DIMENSION)
    return _unit(vectors)


def _documented(module: Any) -> Iterator[str]:
    members = [member for _, member in sorted(vars(module).items(), key=lambda item: item[0])]
    methods = [
        method
        for member in members
        if inspect.isclass(member)
        for _, method in sorted(vars(member).items(), key=lambda item: item[0])
    ]
    for thing in (module, *members, *methods):
        text = getattr(thing, "__doc__", None)
        if isinstance(text, str):
            yield text


def _is_plain(sentence: str) -> bool:
    words = sentence.split()
    letters = sum(sign.isalpha() or sign == " " for sign in sentence)
    return (
        6 <= len(words) <= 40
        and sentence[0].isupper()
        and sentence[-1] in ".!?"
        and letters >= 0.9 * len(sentence)
    )


def _unit(vectors: npt.NDArray[Any]) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
