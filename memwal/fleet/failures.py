"""What failed and rests: kept in the catalog, and at hand without asking it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memwal.errors import MemWalError
from memwal.fleet.budget import Outcome

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.catalog.setbacks import Trouble

logger = logging.getLogger(__name__)


class Failures:
    """The jobs that failed, of all tables.

    When the catalog does not answer, what happens meanwhile is in the log, and not kept.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[tuple[str, str], Trouble] = {}

    def read(self) -> None:
        """Take in what others wrote; raises when the catalog does not answer."""
        self._known = {(one.table, one.job): one for one in self._catalog.setbacks.troubles()}

    def rests(self, table: str, job: str) -> bool:
        """Whether something failed, and its next try is still to come."""
        trouble = self._known.get((table, job))
        return trouble is not None and trouble.next_try_at > datetime.now(UTC)

    def add(self, table: str, job: str, reason: str, error: BaseException) -> Outcome:
        """Write a failure down, whatever it is: the other tables go on."""
        if not isinstance(error, MemWalError):
            logger.error("%s of %s failed unexpectedly", job, table, exc_info=error)
        text = f"{type(error).__name__}: {error}"
        trouble: Trouble | None = None
        try:
            trouble = self._catalog.setbacks.failed(table, job, text)
            self._known[table, job] = trouble
            logger.warning("%s of %s failed (try %d): %s", job, table, trouble.attempts, text)
        except MemWalError as second:
            logger.warning("%s of %s failed: %s; not written down: %s", job, table, text, second)
        return Outcome(table=table, job=job, reason=reason, trouble=trouble)

    def recovered(self, table: str, job: str) -> None:
        """Forget a failure, if there was one."""
        if (table, job) not in self._known:
            return
        try:
            self._catalog.setbacks.recovered(table, job)
            del self._known[table, job]
        except MemWalError as error:
            logger.warning("that %s of %s works again was not written: %s", job, table, error)
