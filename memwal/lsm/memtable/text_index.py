"""Full-text search in a MemTable: tokens of its rows, by the rules of Lance's text index."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from memwal.boundary.lance_errors import first_line
from memwal.errors import InvalidInputError
from memwal.lsm.key_hashes import hash_rows
from memwal.lsm.memtable.rows import Rows, RowView, with_room
from memwal.util.arrays import Hashes


@dataclass(frozen=True, slots=True, eq=False)
class _HashedTokens:
    """Hashed tokens of the first ``rows`` rows; those of row i end at ``ends[i]``.

    Both arrays have room for more rows, which the next call that indexes fills.
    """

    hashes: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.int64]
    rows: int = 0

    def tokens(self, rows: int) -> int:
        """Return the number of tokens of the first rows."""
        return int(self.ends[rows - 1]) if rows else 0


class TextIndex:
    """Text index of one column: the hashed tokens of each row, in order.

    A query compares all tokens, which takes 1 ms per term and million tokens. A column that is
    never searched costs nothing unless :meth:`catch_up` is called.

    Any thread may call any method at any time: indexing takes a lock of its own, reading none.
    Every method first indexes the rows of the view that are not indexed yet.

    Memory: 8 bytes per token and 8 per row, with room for growth up to twice that.

    The column has text, or lists of text; its path has dots between names of nested fields. The
    options are those of the base table's text index, or the ``params`` in its statistics. Raises
    InvalidInputError if they are not those of a text index that can be searched here.
    """

    def __init__(self, column: str, options: Mapping[str, object] | None = None) -> None:
        self.column = column
        self._tokenizer = Tokenizer(options)
        self._lock = threading.Lock()
        self._state = _HashedTokens(np.empty(0, np.uint64), np.empty(0, np.int64))

    @property
    def options(self) -> Mapping[str, object]:
        """Options of the tokenizer that change tokens."""
        return self._tokenizer.options

    @property
    def rows(self) -> int:
        """Number of indexed rows."""
        return self._state.rows

    @property
    def nbytes(self) -> int:
        """Memory of the index, in bytes."""
        state = self._state
        return state.hashes.nbytes + state.ends.nbytes

    def occurrences(self, terms: Sequence[str], view: RowView) -> tuple[Rows, dict[str, Rows]]:
        """Count the tokens of each row of a view, and the occurrences of each term in it."""
        self.catch_up(view)
        state = self._state
        ends = state.ends[: view.rows]
        hashes = state.hashes[: state.tokens(view.rows)]
        distinct = list(dict.fromkeys(terms))
        counts = {
            term: _count_term(hashes, ends, hashed)
            for term, hashed in zip(distinct, hash_terms(distinct), strict=True)
        }
        return np.diff(ends, prepend=0), counts

    def vocabulary(self, view: RowView, rows: Rows) -> list[str]:
        """Return the distinct tokens of some rows, in the order of their bytes; not cached."""
        return self._tokenizer.vocabulary(view.take_column(self.column, rows))

    def check(self, view: RowView) -> None:
        """Raise InvalidInputError if a view, even without rows, lacks the column as text."""
        kind = view.column_type(self.column)
        text = kind.value_type if pt.is_list(kind) or pt.is_large_list(kind) else kind
        if not (pt.is_string(text) or pt.is_large_string(text)):
            raise InvalidInputError(
                f"column {self.column} is {kind}; text is searched in text and lists of text"
            )

    def catch_up(self, view: RowView) -> None:
        """Index the rows of a view that are not indexed yet."""
        if self._state.rows >= view.rows:
            return
        with self._lock:
            state = self._state
            if state.rows < view.rows:
                self._state = self._extended(state, view)

    def _extended(self, state: _HashedTokens, view: RowView) -> _HashedTokens:
        self.check(view)
        hashes, ends = state.hashes, state.ends
        rows, tokens = state.rows, state.tokens(state.rows)
        for chunk in view.column(self.column, start=rows).chunks:
            added = self._tokenizer.tokens(chunk)
            hashes = with_room(hashes, tokens, tokens + len(added.hashes))
            ends = with_room(ends, rows, rows + len(chunk))
            hashes[tokens : tokens + len(added.hashes)] = added.hashes
            ends[rows : rows + len(chunk)] = tokens + np.cumsum(added.counts)
            rows, tokens = rows + len(chunk), tokens + len(added.hashes)
        return _HashedTokens(hashes, ends, rows)


def _count_term(
    hashes: npt.NDArray[np.uint64], ends: npt.NDArray[np.int64], term: np.uint64
) -> Rows:
    rows = ends.searchsorted(np.flatnonzero(hashes == term), side="right")
    return np.bincount(rows, minlength=len(ends))


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
# Options that an index records as well, and tokens do not depend on.
_IGNORED_OPTIONS: Final = (
    "lance_tokenizer",
    "with_position",
    "block_size",
    "memory_limit",
    "num_workers",
    "format_version",
    "document_granularity",
)
# Base tokenizers that never produce a token across a space.
_SPLIT_AT_SPACES: Final = ("simple", "whitespace")
# Tokens are Python objects for a moment; these numbers of texts and pieces bound their memory.
_BLOCK_TEXTS = 16_384
_BLOCK_PIECES = 32_768
_MARKER = "sepzz9"


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Hashed tokens of texts, in order."""

    hashes: Hashes  # shape (tokens,): 64-bit hash of each token, text after text
    counts: npt.NDArray[np.int64]  # shape (texts,): number of tokens of each text


class Tokenizer:
    """Tokenizer of a text index with certain options.

    One call of Lance's tokenizer takes 10 microseconds, so texts are split at spaces first, and the
    distinct pieces are tokenized in one call with a marker between them. Tokenizers whose tokens
    may contain spaces get one call per distinct text.

    The options are those of ``create_scalar_index(..., "INVERTED")``, or the ``params`` in an
    index's statistics; options that do not change tokens are ignored. Raises InvalidInputError if
    an option is unknown or invalid.
    """

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        passed = dict(options or {})
        unknown = [name for name in passed if name not in _OPTIONS + _IGNORED_OPTIONS]
        if unknown:
            raise InvalidInputError(f"unknown text index options: {', '.join(unknown)}")
        if passed.get("lance_tokenizer") not in (None, "text"):
            raise InvalidInputError(
                f"the text index tokenizes {passed['lance_tokenizer']}; only text can be searched "
                "before it is flushed"
            )
        if str(passed.get("document_granularity", "ROW")).upper().rpartition(".")[2] != "ROW":
            raise InvalidInputError(
                "the text index takes each list element as a document; only whole rows can be "
                "searched, with an index of their own"
            )
        self._options = {
            name: value
            for name, value in passed.items()
            if name in _OPTIONS and (value is not None or name == "max_token_length")
        }
        marker = self.terms(_MARKER)
        base = self._options.get("base_tokenizer", "simple")
        splits_at_spaces = base in _SPLIT_AT_SPACES
        self._ignores_repeats = base == "ngram"
        self._marker = marker[0] if splits_at_spaces and len(marker) == 1 else None

    @property
    def options(self) -> Mapping[str, object]:
        """Options that change tokens, as ``create_scalar_index`` takes them."""
        return self._options

    def vocabulary(self, texts: pa.Array) -> list[str]:
        """Return the distinct tokens of a column of texts, in the order of their bytes."""
        if _is_list(texts.type):
            texts = _joined(texts)
        vocabulary: set[str] = set()
        for text in texts.drop_null().unique().to_pylist():
            vocabulary.update(self.terms(text))
        return sorted(vocabulary, key=str.encode)

    def terms(self, text: str) -> list[str]:
        """Return the tokens of one text in order, with repetitions.

        Raises InvalidInputError if the options contradict one another.
        """
        return [token.text for token in self._tokenize(text)]

    def query_groups(self, query: str) -> list[tuple[str, ...]]:
        """Return the terms that Lance searches for: with repetitions, except for n-grams.

        They are grouped by position. A row that matches all terms has one term of each position:
        all n-grams share one position.
        """
        groups: dict[int, list[str]] = {}
        for token in self._tokenize(query):
            groups.setdefault(token.position, []).append(token.text)
        if self._ignores_repeats:
            return [tuple(dict.fromkeys(terms)) for terms in groups.values()]
        return [tuple(terms) for terms in groups.values()]

    def tokens(self, texts: pa.Array) -> Tokens:
        """Tokenize a column of text, or of lists of text whose elements form one document.

        Nulls have no tokens, and null lists those of empty text. Memory besides the result:
        about that of 16,384 texts.
        """
        starts = range(0, len(texts), _BLOCK_TEXTS)
        parts = [self._tokenize_block(texts.slice(start, _BLOCK_TEXTS)) for start in starts]
        if not parts:
            return Tokens(np.empty(0, np.uint64), np.empty(0, np.int64))
        return Tokens(
            np.concatenate([part.hashes for part in parts]),
            np.concatenate([part.counts for part in parts]),
        )

    def _tokenize(self, text: str) -> list[lance.FtsToken]:
        try:
            tokens: list[lance.FtsToken] = lance.tokenize(text, **self._options)
        except (ValueError, OSError, TypeError) as error:
            reason = first_line(error)
            raise InvalidInputError(
                f"Lance cannot tokenize with these options: {reason}"
            ) from error
        return tokens

    def _tokenize_block(self, texts: pa.Array) -> Tokens:
        if _is_list(texts.type):
            texts = _joined(texts)
        if texts.null_count:
            # Not replaced by empty text, which some tokenizers make a token of.
            present = self._tokenize_block(texts.drop_null())
            counts = np.zeros(len(texts), np.int64)
            counts[texts.is_valid().to_numpy(zero_copy_only=False)] = present.counts
            return Tokens(present.hashes, counts)
        if self._marker is None:
            return self._tokenize_distinct(texts)
        pieces = pc.split_pattern(texts, " ")
        tokens = self._tokenize_distinct(pieces.values)
        return Tokens(tokens.hashes, _sums(tokens.counts, np.diff(pieces.offsets.to_numpy())))

    def _tokenize_distinct(self, texts: pa.Array) -> Tokens:
        """Tokenize each distinct text once, and repeat its tokens at every occurrence."""
        encoded = texts.dictionary_encode()
        once = self._tokenize_each(encoded.dictionary)
        which = encoded.indices.to_numpy()
        counts = once.counts[which]
        firsts = (np.cumsum(once.counts) - once.counts)[which]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return Tokens(once.hashes[np.repeat(firsts, counts) + within], counts)

    def _tokenize_each(self, texts: pa.Array) -> Tokens:
        hashes, counts = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for start in range(0, len(texts), _BLOCK_PIECES):
            block = texts.slice(start, _BLOCK_PIECES).to_pylist()
            joined = self._tokenize_joined(block) if self._marker else None
            if joined is None:
                lists = [self.terms(text) for text in block]
                terms = [term for terms in lists for term in terms]
                lengths = np.array([len(terms) for terms in lists], np.int64)
            else:
                terms, lengths = joined
            hashes.append(hash_terms(terms))
            counts.append(lengths)
        return Tokens(np.concatenate(hashes), np.concatenate(counts))

    def _tokenize_joined(self, texts: list[str]) -> tuple[list[str], npt.NDArray[np.int64]] | None:
        """Tokenize texts in one call; None if one of them contains the marker."""
        terms = self.terms(f" {_MARKER} ".join(texts))
        is_marker = np.fromiter((term == self._marker for term in terms), np.bool_, len(terms))
        if np.count_nonzero(is_marker) != len(texts) - 1:
            return None
        text_numbers = np.cumsum(is_marker)[~is_marker]
        counts = np.bincount(text_numbers, minlength=len(texts)).astype(np.int64)
        return [term for term in terms if term != self._marker], counts


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind))


def _joined(lists: pa.Array) -> pa.Array:
    """Join the elements of each list as Lance does; a null list is empty text.

    Lance leaves out nulls, and puts a space before an element only after text that is not empty.
    """
    elements = lists.flatten()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    has_text = pc.fill_null(pc.greater(pc.binary_length(elements), 0), False)
    # Number of elements with text before each one.
    texts_before = np.concatenate([[0], np.cumsum(has_text.to_numpy(zero_copy_only=False))])
    is_kept = elements.is_valid().to_numpy(zero_copy_only=False)
    is_kept = is_kept & (texts_before[1:] > np.repeat(texts_before[ends[:-1]], lengths))
    offsets = np.concatenate([[0], np.cumsum(is_kept)])[ends]
    parts = pa.LargeListArray.from_arrays(pa.array(offsets), elements.filter(pa.array(is_kept)))
    return pc.binary_join(parts, pa.scalar(" ", elements.type))


def hash_terms(terms: list[str]) -> Hashes:
    """Hash tokens as :class:`Tokens` holds them."""
    return hash_rows([pa.array(terms, pa.string())])


def _sums(counts: npt.NDArray[np.int64], lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Sum consecutive counts, ``lengths[i]`` of them for each i."""
    ends = np.concatenate([[0], np.cumsum(counts)])
    stops = np.cumsum(lengths, dtype=np.int64)
    sums: npt.NDArray[np.int64] = ends[stops] - ends[stops - lengths]
    return sums
