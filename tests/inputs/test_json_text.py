"""JSON text that Lance refuses or stores as another value is found, and no other."""

import json
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from memwal.inputs.json_text import find_invalid_json, find_refused_json

REFUSED = [
    '{"a": 1, "a": 1}',
    '{"a": 1, "\\u0061": 2}',
    '[0, {"x": {"b": [], "c": 0, "b": {}}}]',
    "{",
    "-NaN",
    "\ufeff1",
]
CHANGED = [
    "NaN",
    '{"a": [-Infinity]}',
    "1e999",
    "[0,-1.5E+309]",
    "9" * 320,
    "9" * 250 + "e99",
    "1e0000400",
    "[-9223372036854775809]",
    "12345678901234567890123456789",
    '"\\ud800"',
    '{"\\uDE00\\uD83D": 0}',
]
KEPT = [
    '{"a": {"a": 1}, "A": [{"a": 2}, {"a": 3}]}',
    '["NaN", "Infinity", "1e999", " 1e999"]',
    "1e308",
    "[1.0e-007, 123456789012345678]",
    "[-9223372036854775808, 18446744073709551615, 18446744073709551616, 1" + "0" * 22 + "]",
    '"' + "9" * 320 + '"',
    '"\\ud83d\\ude00 \\u00e9 \\\\ud800"',
    " [ ] ",
    "[" + '{"]": []}, ' * 600 + '"' + "[" * 600 + '\\\\\\"' + "{" * 600 + '"]',
    "null",
]


def stored(text: str, tmp_path: Path) -> object:
    """Return the value that Lance stores."""
    column = pa.array([text], pa.string()).cast(pa.json_())
    dataset = lance.write_dataset(
        pa.table({"j": column}), tmp_path / "stored", data_storage_version="2.2"
    )
    return json.loads(dataset.to_table()["j"].to_pylist()[0])


@pytest.mark.parametrize("text", REFUSED)
def test_text_that_lance_refuses(text: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="JSON"):
        stored(text, tmp_path)
    assert find_invalid_json(pa.array([text]), exact=False) is not None
    assert (find_refused_json(text) is not None) == (text in REFUSED[:3])


@pytest.mark.parametrize("text", CHANGED)
def test_text_that_lance_stores_as_another_value(text: str, tmp_path: Path) -> None:
    assert stored(text, tmp_path) != json.loads(text)
    assert find_invalid_json(pa.array([text]), exact=False) is None
    assert find_refused_json(text) is None


@pytest.mark.parametrize("text", KEPT)
def test_other_text_is_kept(text: str, tmp_path: Path) -> None:
    assert stored(text, tmp_path) == json.loads(text)


@pytest.mark.parametrize("part", ['\\"[', "\\\n["])
def test_text_that_is_cut_off_is_read_once(part: str) -> None:
    """Each quote in it began a text again, which took minutes, and its brackets were counted."""
    assert find_refused_json('["' + part * 2000) is None


def test_json_within_structs_and_lists() -> None:
    text = pa.array(["1"], pa.string()).cast(pa.json_())
    struct = pa.StructArray.from_arrays([text], ["j"])
    for values in (struct, pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), text)):
        assert find_invalid_json(values, exact=True) is not None


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.json_()])
def test_one_value_among_others(kind: pa.DataType) -> None:
    def column(*texts: str | None) -> pa.Array:
        return pa.array(texts, pa.string()).cast(kind)

    assert find_invalid_json(column(*KEPT, None), exact=True) is None
    for text in REFUSED + CHANGED:
        assert find_invalid_json(column(None, *KEPT, text), exact=True) is not None


@pytest.mark.parametrize(
    ("before", "after"), [("[", "]"), ('{"}]": ', "}"), ('[[[]], {"\\\\\\"]": ', ', "{": "\\""}]')]
)
def test_text_that_is_nested_deeply(before: str, after: str, tmp_path: Path) -> None:
    """A merge of some 1200 levels overflows a stack of Lance, which ends the process."""
    each = 2 if "{" in before[1:] else 1

    def nested(levels: int) -> str:
        return before * (levels // each) + "[]" + after * (levels // each)

    def is_found(levels: int, *, exact: bool) -> bool:
        return find_invalid_json(pa.array([nested(levels)]), exact=exact) is not None

    assert not is_found(498, exact=True)
    assert is_found(500, exact=True)
    assert not is_found(700, exact=False)
    assert is_found(1000, exact=False)
    assert find_refused_json(nested(700)) is None
    assert find_refused_json(nested(1000)) is not None
    assert stored(nested(700), tmp_path) == json.loads(nested(700))
