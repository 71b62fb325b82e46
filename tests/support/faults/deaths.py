"""Ending a process, as far as its store can tell, where it commits to the base table."""

from support.stores.faulty_store import TABLE_MANIFEST, FaultyStore, Killed

_MANY = 1 << 30


def die_at_commit(store: FaultyStore, *, after: bool, skip: int = 0) -> None:
    """Let the process that uses a store die before or after it commits to the base table.

    Lance turns what its caller raises into an error of its own, which could be taken for one of
    the store. So nothing that is asked for later has any effect: ``store.clear()`` ends that.
    """

    def die() -> None:
        store.kill("*", times=_MANY)
        raise Killed

    store.act("create", die, key=TABLE_MANIFEST, after=after, skip=skip)
