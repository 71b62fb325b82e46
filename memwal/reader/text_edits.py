"""How many characters two words differ by."""

from __future__ import annotations


def edits(one: str, other: str, limit: int) -> int:
    """Characters to insert, delete or replace; more than ``limit`` is only known to be more."""
    if abs(len(one) - len(other)) > limit:
        return limit + 1
    row = list(range(len(other) + 1))
    for count, mine in enumerate(one, 1):
        further = [count]
        for position, theirs in enumerate(other):
            further.append(
                min(row[position] + (mine != theirs), row[position + 1] + 1, further[-1] + 1)
            )
        row = further
        if min(row) > limit:
            return limit + 1
    return row[-1]
