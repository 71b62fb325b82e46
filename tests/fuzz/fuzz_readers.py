"""Give readers inputs that nobody wrote.

``python -m fuzz.fuzz_readers READER SEED COUNT`` gives as many as you like. A seed and a number
decide an input; ``python -m fuzz.fuzz_readers READER SEED --only NUMBER`` gives one of them again,
without a limit on memory and steps, and shows what it does.
"""

import argparse
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa
from fuzz.children import Progress
from fuzz.readers import READERS, Reader

from memwal.errors import CorruptDataError, MemWalError
from memwal.format.wal_entry import MAX_UNPACKED_BYTES

MEMORY: Final = 4 << 30
"""What the process may have beside what it has already, in bytes: a bomb must not go off."""

_ARROW_MEMORY: Final = MAX_UNPACKED_BYTES + (256 << 20)
_STEPS: Final = 200_000
_STEPS_PER_BYTE: Final = 200


class Found(AssertionError):
    """An input that a reader does not take as it must."""


class TooMuchWork(BaseException):
    """A reader took more steps than its input can ask for."""


@dataclass
class Played:
    """What came of the inputs.

    Attributes
    ----------
    outcomes : collections.Counter
        How many inputs were read, and how many refused, by the kind of the error.
    """

    outcomes: Counter[str] = field(default_factory=Counter)


def fuzz(
    name: str,
    seed: int | str,
    count: int,
    *,
    start: int = 0,
    note: Callable[[int], None] | None = None,
) -> Played:
    """Give a reader so many inputs.

    Parameters
    ----------
    note : callable, optional
        Told the number of each input before it is read.

    Raises
    ------
    Found
        It does something else than reading or refusing.
    """
    reader = READERS[name]
    played = Played()
    for number in range(start, start + count):
        if note is not None:
            note(number)
        data, changed = make_input(reader, seed, number)
        try:
            with _limited_steps(_STEPS + _STEPS_PER_BYTE * len(data)):
                played.outcomes[examine(reader, data, changed=changed)] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise Found(
                f"{name}, seed {seed}, input {number} ({len(data)} bytes): "
                f"{type(error).__name__}: {error}\n{data[:200]!r}\n"
                f"again: PYTHONPATH=tests python -m fuzz.fuzz_readers {name} {seed} --only {number}"
            ) from error
    return played


def make_input(reader: Reader, seed: int | str, number: int) -> tuple[bytes, bool]:
    """An input, and whether it is another than the sample it was made of."""
    dice = Random(f"{reader.name}/{seed}/{number}")
    others = reader.samples()
    sample = data = dice.choice(others)
    for _ in range(dice.choice((1, 1, 1, 2, 2, 4))):
        data = dice.choice(reader.changes)(dice, data, others)
    data = reader.finish(data)
    return data, data not in others if data != sample else False


def examine(reader: Reader, data: bytes, *, changed: bool) -> str:
    """Read an input, and say what came of it.

    Raises
    ------
    Found
        A change was not noticed that must be, or memory was asked for that must not be.
    BaseException
        Anything but an error of ours.
    """
    try:
        reader.read(data)
    except MemWalError as error:
        _check_error(error)
        outcome = type(error).__name__
        if reader.vouched(data) and changed and not isinstance(error, CorruptDataError):
            raise Found(f"a change is told as {outcome}") from error
    else:
        outcome = "read"
        if reader.vouched(data) and changed:
            raise Found("a change was not noticed, and there is a checksum")
    if pa.default_memory_pool().max_memory() > _ARROW_MEMORY:
        raise Found(f"Arrow reserved {pa.default_memory_pool().max_memory()} bytes")
    return outcome


def _check_error(error: MemWalError) -> None:
    if len(str(error)) < 20:
        raise Found(f"the error says too little: {error}") from error
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            raise Found("memory ran out before the input was refused") from error
        cause = cause.__cause__ or cause.__context__


@contextmanager
def _limited_steps(most: int) -> Iterator[None]:
    """Bound the calls that are made, of Python and of C; a clock would tell of the machine."""
    left = most

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise TooMuchWork(f"more than {most} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


@contextmanager
def limited_memory(more: int = MEMORY) -> Iterator[None]:
    """Bound the address space of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def main() -> int:
    """Play with one reader, or with all."""
    parser = argparse.ArgumentParser(description="Give readers of memwal what nobody wrote.")
    parser.add_argument("reader", choices=[*READERS, "all"])
    parser.add_argument("seed")
    parser.add_argument("count", type=int, nargs="?", default=1_000)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="one input, again")
    parser.add_argument("--start", type=int, default=0, metavar="NUMBER", help="the first input")
    parser.add_argument("--progress", metavar="FILE", help="where the number of the input stands")
    given = parser.parse_args()
    if given.only is not None:
        data, changed = make_input(READERS[given.reader], given.seed, given.only)
        print(f"{len(data)} bytes: {data[:2_000]!r}")
        print(examine(READERS[given.reader], data, changed=changed))
        return 0
    progress = Progress(given.progress)
    with limited_memory():
        for name in READERS if given.reader == "all" else [given.reader]:
            played = fuzz(name, given.seed, given.count, start=given.start, note=progress.note)
            print(f"{name}: {dict(played.outcomes.most_common())}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
