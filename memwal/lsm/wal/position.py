"""Position of a write in the logs of its regions, as text that travels to other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

from memwal.boundary.public import public
from memwal.errors import InvalidInputError
from memwal.format.paths import MAX_COUNTER

_NOTHING: Final = "none"


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
    """

    entries: tuple[tuple[UUID, int], ...]

    def __str__(self) -> str:
        parts = [f"{region_id.hex}:{number}" for region_id, number in self.entries]
        return ",".join(parts) or _NOTHING

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a position from its text.

        Parameters
        ----------
        text : str
            What ``str`` of a position returns, or several of these joined by commas.

        Raises
        ------
        InvalidInputError
            It is something else.
        """
        try:
            pairs = [part.split(":") for part in text.split(",") if part != _NOTHING]
            entries = tuple((UUID(hex=region_id), int(number)) for region_id, number in pairs)
        except (ValueError, AttributeError):
            entries = ((UUID(int=0), 0),)
        if any(not 0 < number <= MAX_COUNTER for _, number in entries):
            raise InvalidInputError(
                f"{text!r} is not the position of a write; pass WriteHandle.position, or its text"
            )
        return cls(entries)
