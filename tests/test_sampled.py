"""Which cases of a test that is marked ``few`` stay in the default run."""

from __future__ import annotations

import itertools

import pytest
from support.data.sampled import few_of

CASES = [{"kind": kind, "size": size} for kind, size in itertools.product(range(5), range(3))]


@pytest.mark.parametrize("count", range(2, 20))
def test_so_many_with_the_first_and_the_last(count: int) -> None:
    kept = few_of(CASES, count, seed="a test")
    assert len(kept) == min(count, len(CASES))
    assert kept >= {0, len(CASES) - 1}
    assert kept == few_of(CASES, count, seed="a test")


def test_one_is_drawn() -> None:
    drawn = [few_of(CASES, 1, seed=seed) for seed in "abcdefgh"]
    assert {len(kept) for kept in drawn} == {1}
    assert len(set(map(frozenset, drawn))) > 1


@pytest.mark.parametrize("seed", "abcdefgh")
def test_as_many_values_of_each_parameter_as_they_can_have(seed: str) -> None:
    kept = [CASES[number] for number in few_of(CASES, 5, seed=seed)]
    assert {case["kind"] for case in kept} == set(range(5))
    assert {case["size"] for case in kept} == set(range(3))
