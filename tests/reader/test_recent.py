"""What is kept, and what is forgotten first."""

from __future__ import annotations

from memwal.reader.recent import Recent


def test_the_longest_unused_goes_first() -> None:
    made: list[str] = []

    def get(recent: Recent[str], key: str) -> str:
        return recent.get(key, lambda: (made.append(key), key * 2)[1])

    recent: Recent[str] = Recent(6, len)
    assert [get(recent, key) for key in "abca"] == ["aa", "bb", "cc", "aa"]
    assert made == ["a", "b", "c"]
    get(recent, "d")
    assert recent.peek("b") is None
    assert recent.peek("a") == "aa"
    get(recent, "b")
    assert made == ["a", "b", "c", "d", "b"]


def test_one_that_is_too_heavy_is_kept_until_the_next() -> None:
    recent: Recent[str] = Recent(3, len)
    recent.get("a", lambda: "x" * 100)
    assert recent.peek("a") is not None
    recent.get("b", lambda: "x")
    assert recent.peek("a") is None
    assert recent.peek("b") == "x"


def test_a_value_can_be_replaced() -> None:
    recent: Recent[str] = Recent(4, len)
    recent.put("a", "xx")
    recent.put("b", "x")
    recent.put("a", "yyy")
    assert recent.peek("a") == "yyy"
    assert recent.peek("b") == "x"
    recent.put("c", "x")
    assert recent.peek("b") is None
    assert recent.peek("a") == "yyy"
