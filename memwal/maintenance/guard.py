"""A look that a job takes right before each commit and each deletion.

Whoever runs a job under a lease gives it one that raises when the lease is lost. It is no fence: a
process can be paused between the look and the commit, and the commit's compare-and-swap is what
refuses it then. It keeps a job that was replaced from wasting more work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

Guard = Callable[[], None]
"""Returns when the job may go on, and raises when it may not."""


def guarded(function: Callable[..., Any], guard: Guard | None) -> Callable[[Any], Any]:
    """A function of tasks that takes ``guard=``, with this guard.

    A lease is watched by the process that holds it. When the function is sent to another machine,
    the guard stays behind, and what is done there is fenced by the compare-and-swap of its commits
    alone.
    """
    return function if guard is None else partial(function, guard=_Stationary(guard))


class _Stationary:
    """A guard that can be pickled, and does nothing where it is unpickled."""

    def __init__(self, guard: Guard | None) -> None:
        self._guard = guard

    def __call__(self) -> None:
        if self._guard is not None:
            self._guard()

    def __reduce__(self) -> tuple[type[_Stationary], tuple[None]]:
        return (_Stationary, (None,))
