"""Which rows a read of a table may show, by one record of all its writes.

A write is acknowledged, refused, or in doubt. One in doubt may take effect until another process
has its region: after that claim nothing of it can appear any more. Of each key, a read shows the
newest write that it must see, or one that may have come after that. Which writes it must see, the
test knows in which the table lives: those that were acknowledged before it began, that are flushed
up to a position of the log, or that a snapshot has. Where nothing is in doubt, and a read must see
everything, each key has one value.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")
Change = Mapping[int, Value | None]
"""Key to new value; None deletes."""


@dataclass(eq=False, slots=True)
class Write(Generic[Value]):
    """A write of one key.

    Attributes
    ----------
    value : Value or None
        None for a delete.
    begin, end : float
        When it began, and until when it can have taken effect.
    sure : bool
        Whether it was acknowledged.
    position : float or None
        Where it stands in the log of its region, if that is known.
    epoch : float
        Of the claim under which it was made.
    """

    key: int
    value: Value | None
    begin: float
    end: float = math.inf
    sure: bool = False
    position: float | None = None
    region: Hashable = None
    epoch: float = 0
    who: str = ""


def may_show(
    writes: Iterable[Write[Value]], must_see: Sequence[Write[Value]], *, until: float = math.inf
) -> list[Value | None]:
    """Return every value that a read may show of a key.

    Parameters
    ----------
    writes : iterable of Write
        All writes of the key.
    must_see : sequence of Write
        Those that had taken effect for certain, as far as the read sees.
    until : float
        When the read ended.
    """
    begin = max((write.begin for write in must_see), default=-math.inf)
    position = max((write.position or 0 for write in must_see), default=-math.inf)
    shown = [
        write.value
        for write in writes
        if write.end >= begin
        and (write.position is None or write.position >= position)
        and write.begin <= until
    ]
    return shown if must_see else [None, *shown]


class Truth(Generic[Value]):
    """All writes of a table, whose rows have one value each.

    A moment that is not given is later than all before.

    Parameters
    ----------
    region_of : callable
        The region of a key; by default there is one.
    in_order : bool, default False
        Whether writes of a region take effect in the order in which they begin, and none is there
        without those before it.

    Attributes
    ----------
    now : float
        The newest moment.
    reads : int
        How many were checked.
    """

    def __init__(
        self, region_of: Callable[[int], Hashable] = lambda key: None, *, in_order: bool = False
    ) -> None:
        self.now = 0.0
        self.reads = 0
        self._region_of = region_of
        self._in_order = in_order
        self._by_key: dict[int, list[Write[Value]]] = defaultdict(list)
        self._in_doubt: dict[Write[Value], None] = {}
        self._claims: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
        self._settled = -math.inf

    @property
    def writes(self) -> list[Write[Value]]:
        """All that were not refused; those of a key in the order of their beginnings."""
        return [write for writes in self._by_key.values() for write in writes]

    def expected(self) -> dict[int, Value]:
        """Return the rows when everything that was begun happened."""
        newest = {key: writes[-1].value for key, writes in self._by_key.items() if writes}
        return {key: value for key, value in newest.items() if value is not None}

    # What happened

    def begin(
        self, change: Change[Value], now: float | None = None, *, epoch: float = 0, who: str = ""
    ) -> list[Write[Value]]:
        """Record that a write begins: in each region it is there as a whole or not at all."""
        begin = self._moment(now)
        begun = []
        for key, value in change.items():
            region = self._region_of(key)
            later = (at for claim, at in self._claims[region] if claim > epoch)
            end = min(later, default=math.inf)
            begun.append(Write(key, value, begin, end, region=region, epoch=epoch, who=who))
            self._by_key[key].append(begun[-1])
        self._in_doubt |= dict.fromkeys(begun)
        return begun

    def acknowledge(
        self,
        writes: Iterable[Write[Value]] | None = None,
        now: float | None = None,
        *,
        position: float | None = None,
    ) -> None:
        """Record that writes are safe; by default all that are in doubt."""
        end = self._moment(now)
        for write in list(self._in_doubt if writes is None else writes):
            write.sure, write.end = True, end
            write.position = write.begin if self._in_order else position
            self._in_doubt.pop(write, None)

    def refuse(self, writes: Iterable[Write[Value]]) -> None:
        """Record that writes did not happen and never will."""
        for write in writes:
            self._by_key[write.key].remove(write)
            self._in_doubt.pop(write, None)

    def fence(self, region: Hashable, epoch: float, now: float | None = None) -> None:
        """Record a claim of a region: of earlier claims, nothing takes effect any more."""
        at = self._moment(now)
        self._claims[region].append((epoch, at))
        for write in list(self._in_doubt):
            if write.region == region and write.epoch < epoch:
                write.end = min(write.end, at)
                del self._in_doubt[write]

    def transform(self, change: Callable[[Value], Value]) -> None:
        """Change every value, as a change of the schema does."""
        for write in self.writes:
            write.value = write.value and change(write.value)

    # What must be so

    def check(
        self,
        shown: Mapping[int, Value],
        what: str,
        must_see: Callable[[Write[Value]], bool] = lambda write: True,
        *,
        region: Hashable = None,
    ) -> None:
        """Raise AssertionError when a read showed what it must not.

        Parameters
        ----------
        shown : mapping
            Values by key; of any other key, no row was shown.
        what : str
            The read.
        must_see : callable
            Whether it must see an acknowledged write, or a newer one; by default all.
        region : hashable, optional
            To which the read was limited.
        """
        self.reads += 1
        wrong = [f"  {key}: a row without a value" for key, value in shown.items() if value is None]
        for key in {**self._by_key, **shown}:
            if region is not None and self._region_of(key) != region:
                continue
            writes = self._by_key.get(key, [])
            seen = [write for write in writes if write.sure and must_see(write)]
            possible = may_show(writes, seen)
            if shown.get(key) not in possible:
                wrong.append(f"  {key}: {shown.get(key)} instead of {possible}; {writes[-6:]}")
        assert not wrong, f"{what} shows\n" + "\n".join(wrong)

    def settle(self, found: Mapping[int, Value]) -> None:
        """Compare with what is there after a crash, which from now on is the truth."""
        keys = {*self._by_key, *found}
        for region in set(map(self._region_of, keys)):
            here = {key: row for key, row in found.items() if self._region_of(key) == region}
            possible = self.possible(region)
            assert here in possible, f"region {region} shows {here}; possible is\n" + "\n".join(
                f"  {state}" for state in possible
            )
        self._settled = self._moment(None)
        for write in self._in_doubt:
            write.end = self._settled
        self._in_doubt.clear()
        self.acknowledge(self.begin({key: found.get(key) for key in keys}))

    def possible(self, region: Hashable = None) -> list[dict[int, Value]]:
        """Return the rows that a region can have, by which of the writes in doubt happened."""
        entries: dict[float, list[Write[Value]]] = defaultdict(list)
        for write in self.writes:
            if write.region == region and (write.sure or write.begin > self._settled):
                entries[write.begin].append(write)
        states: list[tuple[dict[int, Value | None], bool]] = [({}, True)]
        for _, entry in sorted(entries.items()):
            change = {write.key: write.value for write in entry}
            written = [(r | change, whole) for r, whole in states if whole or not self._in_order]
            left_out = [] if entry[0].sure else [(rows, False) for rows, _ in states]
            states = written + left_out
        return [{k: v for k, v in rows.items() if v is not None} for rows, _ in states]

    def _moment(self, now: float | None) -> float:
        self.now = self.now + 1 if now is None else now
        return self.now
