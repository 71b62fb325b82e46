"""Tokens of a feed: the state of a table that a consumer has seen, as a text."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from memwal.errors import InvalidInputError

_PREFIX: Final = "f1-"
_DIGEST_BYTES: Final = 16
_HEAD: Final = struct.Struct(f"<Q{_DIGEST_BYTES}s")
_REGION: Final = struct.Struct("<16sQQQ")


class SeenRegion(NamedTuple):
    """Generations and log entries of a region that a consumer has seen."""

    generation: int  # newest flushed generation; 0 for none
    newest: int  # newest generation, flushed or not, of which a row was seen
    position: int  # newest log entry; 0 for none


@dataclass(frozen=True, slots=True)
class FeedToken:
    """State of a table that a consumer has seen."""

    version: int  # of the base table
    digest: bytes  # of the version's manifest
    regions: Mapping[UUID, SeenRegion]

    def __str__(self) -> str:
        """Return the text: about 30 characters, and about 25 more for each region."""
        parts = [_HEAD.pack(self.version, self.digest)]
        parts += [
            _REGION.pack(region_id.bytes, *seen) for region_id, seen in sorted(self.regions.items())
        ]
        # The stream of zlib ends with a checksum.
        data = zlib.compress(b"".join(parts), 9)
        return _PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")

    def precedes(self, other: FeedToken) -> bool:
        """Return whether the reader of another token has seen more."""
        if self.version != other.version:
            return self.version < other.version
        return any(
            seen.position < other.regions[region_id].position
            for region_id, seen in self.regions.items()
            if region_id in other.regions
        )

    @classmethod
    def parse(cls, text: str, *others: str) -> FeedToken:
        """Return the token of a text; InvalidInputError, with other choices, if it is none."""
        try:
            if not text.startswith(_PREFIX):
                raise ValueError("another form")
            coded = text.removeprefix(_PREFIX)
            data = zlib.decompress(base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)))
            version, digest = _HEAD.unpack_from(data)
            regions = {
                UUID(bytes=region_id): SeenRegion(*numbers)
                for region_id, *numbers in _REGION.iter_unpack(data[_HEAD.size :])
            }
        except (binascii.Error, struct.error, UnicodeError, ValueError, zlib.error) as error:
            choices = ", ".join(["pass the token of an earlier feed", *others])
            raise InvalidInputError(f"{text[:80]!r} is no token of a feed; {choices}") from error
        return cls(version, digest, regions)
