"""The smallest part of something wrong that is wrong by itself."""

from collections.abc import Callable, Iterable, Mapping

from histories.events import Read, Value
from support.oracles.truth import Write

Event = Read | Write[int]


def smallest(
    events: Iterable[Event],
    is_wrong: Callable[[list[Event]], bool],
    written: Mapping[Value, Write[int]],
) -> list[Event]:
    """Leave out whatever can be left out.

    Parameters
    ----------
    events : iterable
        Wrong as a whole.
    is_wrong : callable
    written : mapping
        Who wrote each value; a write is left out together with all reads that saw it.

    Returns
    -------
    list
        Wrong, and not if any part of it is left out.
    """

    def closed(parts: Iterable[Event]) -> list[Event]:
        """Without reads whose write was left out."""
        there = set(parts)
        return [
            part
            for part in there
            if isinstance(part, Write) or part.value is None or written[part.value] in there
        ]

    # Mostly the end of something wrong can be cut off at once.
    left = sorted(events, key=lambda event: (event.begin, isinstance(event, Read)))
    first, last = 0, len(left)
    while first < last:
        middle = (first + last) // 2
        if is_wrong(closed(left[:middle])):
            last = middle
        else:
            first = middle + 1
    left = left[:first]
    size = max(len(left) // 2, 1)
    while True:
        start, before = 0, len(left)
        while start < len(left):
            rest = closed([*left[:start], *left[start + size :]])
            rest.sort(key=lambda event: (event.begin, isinstance(event, Read)))
            if len(rest) < len(left) and is_wrong(rest):
                left = rest
            else:
                start += size
        if size == 1 and len(left) == before:
            return left
        size = max(size // 2, 1)
