"""Filter of Lance's log.

Lance reports an error each time that it reads an index without columns, and the MemWAL index has
none by design. It reads its filter once, when it is imported.
"""

from __future__ import annotations

import os
from typing import Final

LANCE_LOG: Final = "LANCE_LOG"
"""Environment variable with the filter."""

LIBRARY_FILTER: Final = "warn,lance::index=off"
"""Lance's own default, without that error."""

PROGRAM_FILTER: Final = "error,lance::index=off"
"""Filter of the programs of memwal, whose output is for people."""


def quieten_lance(log_filter: str) -> None:
    """Set the filter, unless the user has set one."""
    if os.environ.get(LANCE_LOG) in (None, LIBRARY_FILTER):
        os.environ[LANCE_LOG] = log_filter
