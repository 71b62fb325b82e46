"""The files of Lance's text indexes are read as Lance means them."""

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.postings import posting_list

from memwal.errors import CorruptDataError
from memwal.reader.unreadable_indexes import UnreadableIndexError
from memwal.search.text import index_files
from memwal.search.text.documents import edit_distance
from memwal.search.text.fst import TokenMap
from memwal.search.text.index_files import LanceTextIndex, TextPartition
from memwal.search.text.postings import decode_postings
from memwal.storage.location import TableLocation

PLAIN = {
    "base_tokenizer": "whitespace",
    "stem": False,
    "remove_stop_words": False,
    "ascii_folding": False,
    "lower_case": False,
    "max_token_length": None,
}


def open_index(folder: Path, texts: list[str], **options: object) -> LanceTextIndex:
    """Index texts with Lance, and open what it wrote."""
    uri = str(folder / "texts")
    dataset = lance.write_dataset(pa.table({"t": texts}), uri, mode="overwrite")
    dataset.create_scalar_index("t", "INVERTED", **{**PLAIN, **options})
    (index,) = lance.dataset(uri).describe_indices()
    return LanceTextIndex.open(TableLocation(uri, {}), uri, index.segments[0].uuid)


def open_partition(folder: Path, texts: list[str], **options: object) -> TextPartition:
    """Open the one partition of an index of some texts."""
    index = open_index(folder, texts, **options)
    assert index.partitions is not None
    (partition,) = index.partitions
    return partition


def counted(texts: list[str]) -> Mapping[str, dict[int, int]]:
    """How often each token is in each text."""
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for row, text in enumerate(texts):
        for token, count in Counter(text.split()).items():
            found[token][row] = count
    return found


def check(partition: TextPartition, texts: list[str]) -> None:
    """Compare a partition with what is in the texts."""
    wanted = counted(texts)
    lengths = {row: len(text.split()) for row, text in enumerate(texts) if text.split()}
    assert dict(zip(partition.rows.tolist(), partition.lengths.tolist(), strict=True)) == lengths
    for token, rows in wanted.items():
        documents, counts = partition.postings(token)
        assert dict(zip(partition.rows[documents].tolist(), counts.tolist(), strict=True)) == rows
        assert (np.diff(documents) > 0).all()
    assert not len(partition.postings("not there")[0])
    everything = list(partition.fuzzy_terms("", distance=-1, prefix=0))
    assert everything == sorted(wanted, key=str.encode)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("with_position", "held"),
    [
        (False, True),
        (True, False),
        pytest.param(False, False, marks=pytest.mark.slow),
        pytest.param(True, True, marks=pytest.mark.slow),
    ],
)
def test_long_lists_of_many_widths(
    tmp_path: Path, with_position: bool, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of up to 9,000 documents, with gaps and counts of one bit and of many."""
    monkeypatch.setattr(index_files, "_IN_MEMORY_TOKENS", (1 << 30) * held)
    rng = random.Random(3)
    words = [f"w{i}" for i in range(40)] + ["Ω", "naïve", "漢字", "x" * 300]
    texts = [
        " ".join(
            ["all"] * rng.choice([1, 1, 1, 900])
            + rng.choices(words, [1 / (1 + i) for i in range(len(words))], k=rng.randrange(12))
        )
        if row % 11
        else ""
        for row in range(9_000)
    ]
    partition = open_partition(tmp_path, texts, with_position=with_position)
    assert partition.is_in_memory(["all"]) == held
    check(partition, texts)
    assert partition.is_in_memory(["all", "not there"])


def test_lists_are_decoded_together_as_one_by_one(tmp_path: Path) -> None:
    """Lists of several partitions, long ones and short ones, with both kinds of last blocks."""
    rng = random.Random(5)
    words = [f"w{i}" for i in range(30)]
    weights = [1 / (1 + i) ** 2 for i in range(len(words))]
    lists, documents, counts = [], [], []
    for number, version in enumerate((1, 2, 2)):
        texts = [" ".join(rng.choices(words, weights, k=6)) for _ in range(60 * 10**number)]
        folder = tmp_path / str(number)
        folder.mkdir()
        partition = open_partition(folder, texts, format_version=version)
        for token in sorted(counted(texts)):
            one = partition.encoded(token)
            assert one is not None
            lists.append(one)
            found = partition.postings(token)
            documents.append(found[0])
            counts.append(found[1])
    assert {one.varint_tail for one in lists} == {True, False}
    rng.shuffle(order := list(range(len(lists))))
    found = decode_postings([lists[at] for at in order], name="them")
    assert np.array_equal(found[0], np.concatenate([documents[at] for at in order]))
    assert np.array_equal(found[1], np.concatenate([counts[at] for at in order]))
    # One that is damaged among many is noticed.
    broken = replace(lists[0], documents=1)
    with pytest.raises(CorruptDataError, match="them"):
        decode_postings([*lists[1:], broken], name="them")


@settings(max_examples=15)
@given(st.lists(st.text("abcdeé/漢-", max_size=12), min_size=1, max_size=40), st.data())
def test_tokens_near_one(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[str], data: st.DataObject
) -> None:
    texts = [" ".join(tokens), "a"]
    partition = open_partition(tmp_path_factory.mktemp("near"), texts)
    check(partition, texts)
    vocabulary = sorted({"a", *(token for token in tokens if token)}, key=str.encode)
    asked = data.draw(st.sampled_from(vocabulary) | st.text("abé漢", max_size=5))
    distance = data.draw(st.integers(0, 3))
    prefix = data.draw(st.integers(0, len(asked.encode())))
    start = asked.encode()[:prefix]
    wanted = [
        token
        for token in vocabulary
        if token.encode().startswith(start) and edit_distance(asked, token, 100) <= distance
    ]
    assert list(partition.fuzzy_terms(asked, distance=distance, prefix=prefix)) == wanted


@given(st.text("abc", max_size=6), st.text("abc", max_size=6), st.integers(0, 4))
def test_edits(one: str, other: str, limit: int) -> None:
    exact = edit_distance(one, other, 100)
    assert exact == edit_distance(other, one, 100)
    assert (exact == 0) == (one == other)
    assert abs(len(one) - len(other)) <= exact <= max(len(one), len(other))
    assert min(edit_distance(one, other, limit), limit + 1) == min(exact, limit + 1)


def test_a_node_with_many_transitions(tmp_path: Path) -> None:
    """More than 32 have a table; each letter of many alphabets begins a token here."""
    texts = [" ".join(chr(code) + "x" for code in range(0x21, 0x17F) if chr(code).strip())]
    check(open_partition(tmp_path, texts), texts)


def test_rows_are_found_by_their_ids(tmp_path: Path) -> None:
    partition = open_partition(tmp_path, ["a", "", "b", "c"])
    found = partition.positions_of(np.array([0, 1, 3, 99], np.uint64))
    assert partition.rows[found].tolist() == [0, 3]


@pytest.mark.parametrize("options", [{"format_version": 3}, {"block_size": 256}])
def test_other_formats_are_not_read(tmp_path: Path, options: dict[str, int]) -> None:
    index = open_index(tmp_path, ["a", "b"], **options)
    assert index.partitions is None
    assert index.parameters["base_tokenizer"] == "whitespace"


def test_what_is_no_index_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreadableIndexError):
        LanceTextIndex.open(TableLocation(str(tmp_path), {}), str(tmp_path), "nowhere")
    with pytest.raises(CorruptDataError):
        TokenMap(b"\x07" * 64, lists=1, name="it")
    for blocks, length in (
        ([b"", b""], 5),
        ([b"\0" * 4 + b"\x81"], 5),
        ([b"\0" * 6], 128),
    ):
        with pytest.raises(CorruptDataError):
            one = posting_list(blocks, length, documents=500, varint_tail=True)
            decode_postings([one], name="it")
