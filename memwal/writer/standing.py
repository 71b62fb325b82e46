"""Whether the writer of a region may go on."""

from __future__ import annotations

from memwal.errors import MemWalError
from memwal.writer.handle import as_error


class Standing:
    """What ended the writer of a region, if anything did. Guarded by the region's state.

    Attributes
    ----------
    failure : MemWalError or None
        The first thing that did.
    """

    __slots__ = ("failure",)

    def __init__(self) -> None:
        self.failure: MemWalError | None = None

    def end(self, reason: BaseException) -> None:
        """Take no more writes; a second reason does not replace the first."""
        if self.failure is None:
            self.failure = reason if isinstance(reason, MemWalError) else as_error(reason)

    def check(self) -> None:
        """Raise what ended the writer."""
        if self.failure is not None:
            raise as_error(self.failure)
