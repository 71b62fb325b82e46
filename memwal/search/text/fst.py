"""Token map of a text index: a finite-state transducer as the Rust crate ``fst`` writes it.

The map is stored in a column of the index's token file. This module reads the values that a search
needs: the posting list number of a token, and the tokens within an edit distance of another.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from memwal.errors import CorruptDataError

_HEADER: Final = 16
_VERSIONS: Final = (2, 3)
# Inputs so common that a node with one transition has them in its first byte, counted from 1.
_COMMON: Final = b"te/oasripcnw.hlm-du012g=:bf3y5&_4v9678k%?xCDASFIBEjPTzRNM+LOqHG"
# A node with more transitions has a table of 256 bytes to find them by.
_INDEXED: Final = 32

_Node = tuple[bool, int, list[tuple[int, int, int]]]
"""A node: whether a token ends here, the output that the end adds, and the transitions (byte,
output, next node).
"""


class _WideNode(NamedTuple):
    """Node with several transitions: their number, and the offsets of their parts in the map.

    Parts are stored in reverse: those of the first transition come last.
    """

    final: bool
    fan_out: int
    inputs: int
    targets: int
    target_size: int
    outputs: int
    output_size: int
    end: int


class TokenMap:
    """Maps tokens to numbers.

    ``lists`` is the number of posting lists, of which every token has one; error messages call the
    map ``name``. CorruptDataError is raised for bytes that are no such map, also by the methods, of
    which none reads all of it.
    """

    def __init__(self, data: bytes, *, lists: int, name: str) -> None:
        version = struct.unpack_from("<Q", data)[0] if len(data) >= 2 * _HEADER else 0
        if version not in _VERSIONS:
            raise CorruptDataError(
                f"{name} is not a map of tokens of a known version; build it again"
            )
        # Version 3 ends with a checksum.
        end = len(data) - (4 if version > 2 else 0)
        self._data = data
        self._name = name
        self._lists = lists
        self._size, self._root = struct.unpack_from("<QQ", data, end - 16)
        if self._size > lists:
            raise CorruptDataError(
                f"{name} says that it has {self._size} tokens, and there are {lists} posting "
                "lists; build the index again"
            )

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return len(self._data)

    def __len__(self) -> int:
        return int(self._size)

    def get(self, token: str) -> int | None:
        """Return the number of a token, None if it is not in the map."""
        if not self._size:
            return None
        total, address = 0, self._root
        try:
            for byte in token.encode():
                step = self._step(address, byte)
                if step is None:
                    return None
                total += step[0]
                address = step[1]
            output = self._final_output(address)
            return None if output is None else self._number_of(total + output)
        except IndexError as error:
            raise self._corruption(error) from error

    def tokens(self) -> Iterator[tuple[str, int]]:
        """Iterate over all tokens with their numbers, in byte order."""
        return self.fuzzy_terms("", distance=-1)

    def fuzzy_terms(
        self, token: str, *, distance: int, prefix: int = 0
    ) -> Iterator[tuple[str, int]]:
        """Iterate over tokens within an edit distance (-1: any), of one prefix, in byte order."""
        if not self._size:
            return
        try:
            yield from self._walk(token, distance, token.encode()[:prefix])
        except IndexError as error:
            raise self._corruption(error) from error

    def _walk(self, token: str, distance: int, start: bytes) -> Iterator[tuple[str, int]]:
        todo = [(self._root, b"", 0, list(range(len(token) + 1)))]
        # Each token ends at a node, and each node before that is on the way to one.
        steps_left = self._size * len(self._data)
        while todo:
            steps_left -= 1
            if steps_left < 0:
                raise IndexError("it has more ways than tokens")
            address, read, total, row = todo.pop()
            final, output, transitions = self._node(address)
            if final and (distance < 0 or row[-1] <= distance) and read.startswith(start):
                yield read.decode(errors="replace"), self._number_of(total + output)
            for byte, more, target in reversed(transitions):
                further = read + bytes([byte])
                if len(further) <= len(start) and further != start[: len(further)]:
                    continue
                reached = row
                if distance >= 0 and _ends_character(further):
                    reached = next_row(row, token, further.decode(errors="replace")[-1])
                    if min(reached) > distance:
                        continue
                todo.append((target, further, total + more, reached))

    def _corruption(self, error: IndexError) -> CorruptDataError:
        """Return the error to raise for an offset outside of the map."""
        return CorruptDataError(
            f"{self._name} is not a map of tokens: {error}; build the index again"
        )

    def _number_of(self, number: int) -> int:
        if number >= self._lists:
            raise IndexError(f"token {number} has no posting list")
        return number

    def _step(self, address: int, byte: int) -> tuple[int, int] | None:
        """Return output and next node of one transition, without decoding the others."""
        if not address:
            return None
        state = self._state(address)
        kind = state >> 6
        if kind < 0b10:
            wide = self._wide(state, address)
            at = self._data.rfind(byte, wide.inputs - wide.fan_out, wide.inputs)
            if at < 0:
                return None
            return self._transition(wide, wide.inputs - 1 - at)
        read, at = self._single_input(state, address)
        if read != byte:
            return None
        return (0, at - 1) if kind == 0b11 else self._single_target(at)

    def _final_output(self, address: int) -> int | None:
        """Return the number that a node adds to a token that ends there; None if none does."""
        if not address:
            return 0
        state = self._state(address)
        if state >> 6 >= 0b10:
            return None
        wide = self._wide(state, address)
        return self._number(wide.end, wide.output_size) if wide.final else None

    def _node(self, address: int) -> _Node:
        if address == 0:
            return True, 0, []
        state = self._state(address)
        kind = state >> 6
        if kind == 0b11:
            byte, at = self._single_input(state, address)
            return False, 0, [(byte, 0, at - 1)]
        if kind == 0b10:
            byte, at = self._single_input(state, address)
            return False, 0, [(byte, *self._single_target(at))]
        wide = self._wide(state, address)
        transitions = [
            (self._data[wide.inputs - 1 - i], *self._transition(wide, i))
            for i in range(wide.fan_out)
        ]
        last = self._number(wide.end, wide.output_size) if wide.final else 0
        return wide.final, last, transitions

    def _state(self, address: int) -> int:
        """Return the state byte of a node, which is stored behind its other bytes."""
        if address < _HEADER:
            raise IndexError(f"there is no node at byte {address}")
        return self._data[address]

    def _single_input(self, state: int, address: int) -> tuple[int, int]:
        """The input of a node with one transition, and where the node goes on."""
        common = state & 0x3F
        if common:
            return _COMMON[common - 1], address
        return self._data[address - 1], address - 1

    def _single_target(self, at: int) -> tuple[int, int]:
        """Output and next node of a node with one transition, whose sizes stand before ``at``."""
        target_size, output_size = divmod(self._data[at - 1], 16)
        end = at - 1 - target_size - output_size
        return self._number(end, output_size), self._target(at - 1 - target_size, target_size, end)

    def _wide(self, state: int, address: int) -> _WideNode:
        data = self._data
        final, count, at = bool(state & 0x40), state & 0x3F, address
        if not count:
            at -= 1
            # A node of one input is of another kind, so that 1 can stand for 256.
            count = 256 if data[at] == 1 else data[at]
        at -= 1
        target_size, output_size = divmod(data[at], 16)
        inputs = at - (256 if count > _INDEXED else 0)
        targets = inputs - count
        outputs = targets - count * target_size
        end = outputs - (count + final) * output_size
        if end < 0:
            raise IndexError(f"the node at byte {address} has no room")
        return _WideNode(final, count, inputs, targets, target_size, outputs, output_size, end)

    def _transition(self, wide: _WideNode, number: int) -> tuple[int, int]:
        """Return output and next node of one of several transitions."""
        output = self._number(wide.outputs - (number + 1) * wide.output_size, wide.output_size)
        at = wide.targets - (number + 1) * wide.target_size
        return output, self._target(at, wide.target_size, wide.end)

    def _target(self, at: int, size: int, end: int) -> int:
        apart = self._number(at, size)
        return end - apart if apart else 0

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self._data[at : at + size], "little")


def _ends_character(data: bytes) -> bool:
    back = 1
    while back < len(data) and data[-back] & 0xC0 == 0x80:
        back += 1
    lead = data[-back]
    length = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    return length == back


def next_row(row: list[int], token: str, character: str) -> list[int]:
    """Compute the next row of the edit-distance table."""
    following = [row[0] + 1]
    for position, other in enumerate(token):
        following.append(
            min(row[position] + (other != character), row[position + 1] + 1, following[-1] + 1)
        )
    return following
