"""Position of a write in the logs of its regions, as text that travels to other processes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

from memwal.boundary.public import public
from memwal.errors import InvalidInputError
from memwal.format.paths import MAX_COUNTER

_NOTHING: Final = "none"
_ENTRY: Final = re.compile("([0-9a-f]{32}):([1-9][0-9]{0,19})", re.ASCII)
_SHOWN: Final = 100


@public
@dataclass(frozen=True, slots=True)
class WritePosition:
    """Entries that have the rows of a write: one for each region.

    Its text fits into a header of HTTP or a message of a queue:

    >>> from uuid import UUID
    >>> position = WritePosition(((UUID(int=7), 12),))
    >>> str(position)
    '00000000000000000000000000000007:12'
    >>> WritePosition.parse(str(position)) == position
    True

    A write of no rows has the text ``none``. Texts joined by commas are a position as well, which
    has all of these writes.

    Parameters
    ----------
    entries : tuple of (UUID, int)
        Region, and number of the entry in its log.

    Raises
    ------
    InvalidInputError
        The entries are something else.
    """

    entries: tuple[tuple[UUID, int], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.entries, tuple) or not all(map(_is_entry, self.entries)):
            raise InvalidInputError(
                "a position has a tuple of pairs: the UUID of a region, and the number of an entry"
            )

    def __str__(self) -> str:
        parts = [f"{region_id.hex}:{number}" for region_id, number in self.entries]
        return ",".join(parts) or _NOTHING

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a position from its text.

        Parameters
        ----------
        text : str
            A position as ``str`` returns it, or several of them joined by commas.

        Raises
        ------
        InvalidInputError
            It is something else.
        """
        entries = []
        for part in text.split(","):
            # A proxy that joins two headers writes a space behind the comma.
            part = part.strip(" ")
            found = _ENTRY.fullmatch(part)
            if found is not None:
                entries.append((UUID(hex=found[1]), int(found[2])))
            elif part != _NOTHING:
                raise InvalidInputError(
                    f"{text[:_SHOWN]!r} is not the position of a write; pass "
                    "WriteHandle.position, or its text"
                )
        return cls(tuple(entries))


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, tuple) or len(entry) != 2:
        return False
    region_id, number = entry
    return isinstance(region_id, UUID) and type(number) is int and 0 < number <= MAX_COUNTER
