"""Tokenizer for many texts at once, producing exactly the tokens that Lance would index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.errors import InvalidInputError
from memwal.lsm.memtable.hashing import Hashes, hash_rows

_OPTIONS: Final = (
    "analyzer",
    "base_tokenizer",
    "language",
    "max_token_length",
    "lower_case",
    "stem",
    "remove_stop_words",
    "custom_stop_words",
    "ascii_folding",
    "min_ngram_length",
    "max_ngram_length",
    "prefix_only",
    "split_identifiers",
    "split_on_numerics",
    "preserve_original",
    "index_operators",
)
# What an index records beside them and tokens do not depend on.
_OTHER_OPTIONS: Final = (
    "lance_tokenizer",
    "with_position",
    "block_size",
    "memory_limit",
    "num_workers",
    "format_version",
    "document_granularity",
)
# These never make one token of what stands on both sides of a space.
_SPLIT_AT_SPACES: Final = ("simple", "whitespace")
# Tokens are Python objects for a moment; so many texts and pieces at a time bound their memory.
_BLOCK_TEXTS = 16_384
_BLOCK_PIECES = 32_768
_MARKER = "sepzz9"


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Tokens of texts in order.

    Parameters
    ----------
    hashes : numpy.ndarray of uint64, shape (tokens,)
        64-bit hash of each token, text after text.
    counts : numpy.ndarray of int64, shape (texts,)
        Number of tokens of each text.
    """

    hashes: Hashes
    counts: npt.NDArray[np.int64]


class Tokenizer:
    """Tokenizes as a text index with certain options does.

    One call of Lance's tokenizer takes 10 microseconds, so texts are split at spaces first, and
    the distinct pieces tokenized in one call with a marker between them. Tokenizers that look
    across spaces get one call per distinct text.

    Parameters
    ----------
    options : mapping, default {}
        Options of ``create_scalar_index(..., "INVERTED")``, or the ``params`` in an index's
        statistics. Those that do not touch tokens are ignored.

    Raises
    ------
    InvalidInputError
        When an option is not known, or not right.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        given = dict(options or {})
        unknown = [name for name in given if name not in _OPTIONS + _OTHER_OPTIONS]
        if unknown:
            raise InvalidInputError(f"unknown text index options: {', '.join(unknown)}")
        if given.get("lance_tokenizer") not in (None, "text"):
            raise InvalidInputError(
                f"the text index tokenizes {given['lance_tokenizer']}; only text can be searched "
                "before it is flushed"
            )
        if str(given.get("document_granularity", "ROW")).upper().rpartition(".")[2] != "ROW":
            raise InvalidInputError(
                "the text index takes each list element as a document; only whole rows can be "
                "searched, with an index of their own"
            )
        self._options = {
            name: value
            for name, value in given.items()
            if name in _OPTIONS and (value is not None or name == "max_token_length")
        }
        marker = self.terms(_MARKER)
        base = self._options.get("base_tokenizer", "simple")
        splits = base in _SPLIT_AT_SPACES
        self._counts_once = base == "ngram"
        self._marker = marker[0] if splits and len(marker) == 1 else None

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that touch tokens, as ``create_scalar_index`` takes them."""
        return self._options

    def vocabulary(self, texts: pa.Array) -> list[str]:
        """Distinct tokens of a column as :meth:`tokens` takes it, in the order of their bytes."""
        while pt.is_list(texts.type) or pt.is_large_list(texts.type):
            texts = texts.flatten()
        found: set[str] = set()
        for text in texts.drop_null().unique().to_pylist():
            found.update(self.terms(text))
        return sorted(found, key=str.encode)

    def terms(self, text: str) -> list[str]:
        """Tokens of one text, in order, repeated ones too.

        Raises
        ------
        InvalidInputError
            When the options do not fit one another.
        """
        return [token.text for token in self._tokens(text)]

    def query_groups(self, query: str) -> list[tuple[str, ...]]:
        """The terms of :meth:`query_terms` by position.

        Where all terms are asked for, one of each position will do: n-grams all stand at one.
        """
        found: dict[int, list[str]] = {}
        for token in self._tokens(query):
            found.setdefault(token.position, []).append(token.text)
        if self._counts_once:
            return [tuple(dict.fromkeys(terms)) for terms in found.values()]
        return [tuple(terms) for terms in found.values()]

    def query_terms(self, query: str) -> list[str]:
        """Tokens that Lance searches for: repeated ones count each time, but not n-grams."""
        terms = self.terms(query)
        return list(dict.fromkeys(terms)) if self._counts_once else terms

    def tokens(self, texts: pa.Array) -> Tokens:
        """Tokens of a column of text, or of lists of text whose elements count together.

        Nulls have no tokens. Memory besides the result: about that of the texts, 16,384 rows at
        a time.
        """
        starts = range(0, len(texts), _BLOCK_TEXTS)
        parts = [self._block(texts.slice(start, _BLOCK_TEXTS)) for start in starts]
        if not parts:
            return Tokens(np.empty(0, np.uint64), np.empty(0, np.int64))
        return Tokens(
            np.concatenate([part.hashes for part in parts]),
            np.concatenate([part.counts for part in parts]),
        )

    def _tokens(self, text: str) -> list[lance.FtsToken]:
        try:
            tokens: list[lance.FtsToken] = lance.tokenize(text, **self._options)
        except (ValueError, OSError, TypeError) as error:
            raise InvalidInputError(f"Lance refuses to tokenize so: {error}") from error
        return tokens

    def _block(self, texts: pa.Array) -> Tokens:
        if pt.is_list(texts.type) or pt.is_large_list(texts.type):
            elements = self._block(texts.flatten())
            lengths = pc.fill_null(pc.list_value_length(texts), 0).to_numpy()
            return Tokens(elements.hashes, _sums(elements.counts, lengths))
        if texts.null_count:
            # Not as empty text, which is a token of its own to some tokenizers.
            present = self._block(texts.drop_null())
            counts = np.zeros(len(texts), np.int64)
            counts[texts.is_valid().to_numpy(zero_copy_only=False)] = present.counts
            return Tokens(present.hashes, counts)
        if self._marker is None:
            return self._distinct(texts)
        pieces = pc.split_pattern(texts, " ")
        tokens = self._distinct(pieces.values)
        return Tokens(tokens.hashes, _sums(tokens.counts, np.diff(pieces.offsets.to_numpy())))

    def _distinct(self, texts: pa.Array) -> Tokens:
        """Tokenize every distinct text once, and repeat its tokens where it stands."""
        encoded = texts.dictionary_encode()
        once = self._one_by_one(encoded.dictionary)
        which = encoded.indices.to_numpy()
        counts = once.counts[which]
        firsts = (np.cumsum(once.counts) - once.counts)[which]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return Tokens(once.hashes[np.repeat(firsts, counts) + within], counts)

    def _one_by_one(self, texts: pa.Array) -> Tokens:
        hashes, counts = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for start in range(0, len(texts), _BLOCK_PIECES):
            block = texts.slice(start, _BLOCK_PIECES).to_pylist()
            found, lengths = self._marked(block) if self._marker else (None, None)
            if found is None or lengths is None:
                lists = [self.terms(text) for text in block]
                found = [term for terms in lists for term in terms]
                lengths = np.array([len(terms) for terms in lists], np.int64)
            hashes.append(hash_terms(found))
            counts.append(lengths)
        return Tokens(np.concatenate(hashes), np.concatenate(counts))

    def _marked(self, texts: list[str]) -> tuple[list[str] | None, npt.NDArray[np.int64] | None]:
        """Tokenize texts in one call; nothing when one of them holds the marker itself."""
        found = self.terms(f" {_MARKER} ".join(texts))
        marks = np.fromiter((term == self._marker for term in found), np.bool_, len(found))
        if np.count_nonzero(marks) != len(texts) - 1:
            return None, None
        counts = np.bincount(np.cumsum(marks)[~marks], minlength=len(texts)).astype(np.int64)
        return [term for term in found if term != self._marker], counts


def hash_terms(terms: list[str]) -> Hashes:
    """Hash tokens as :class:`Tokens` holds them."""
    return hash_rows([pa.array(terms, pa.string())])


def _sums(counts: npt.NDArray[np.int64], lengths: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Add up ``lengths[i]`` counts after one another, for every i."""
    ends = np.concatenate([[0], np.cumsum(counts)])
    stops = np.cumsum(lengths, dtype=np.int64)
    sums: npt.NDArray[np.int64] = ends[stops] - ends[stops - lengths]
    return sums
