"""Writers do not survive a fork.

The child of ``os.fork`` has copies of the writer's locks, some of them held by threads that it does
not have, and no thread that would flush. Two processes with one claim would also write to one log.
So what was opened before a fork refuses to work after it, and says so before it touches a lock.

A new writer in the child may not work either: the threads of Lance and of the object store's client
do not survive a fork, and what used them before it can hang or crash after it. Hence the advice to
fork before anything is opened, or not at all.
"""

from __future__ import annotations

import os

from memwal.errors import WriterClosedError

# Counts the forks between the first process and this one. Unlike a process id, no descendant has
# the number of an ancestor again.
_generation = 0


def _in_child() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_in_child)


class ForkGuard:
    """Remembers the process in which something was opened.

    Parameters
    ----------
    what : str
        What is guarded, for the message: "the writer of s3://lake/flights".
    """

    __slots__ = ("_generation", "_pid", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self._generation = _generation

    @property
    def inherited(self) -> bool:
        """Whether this process got it by a fork. Then nothing of it may be used or cleaned up."""
        return self._generation != _generation

    def check(self) -> None:
        """Make sure that this is the process; before taking any lock.

        Raises
        ------
        WriterClosedError
            It is a child of that process.
        """
        if self._generation != _generation:
            raise WriterClosedError(
                f"{self._what} was opened in process {self._pid} and does not work in process "
                f"{os.getpid()}, its fork: start processes that write with multiprocessing's "
                '"spawn" or "forkserver", or before anything was opened, and open a writer in each'
            )
