"""Files into which tasks write while they run."""

import time
from pathlib import Path


def is_still(path: Path) -> bool:
    """Return whether a file that a task writes into stops to grow within a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        size = path.stat().st_size
        time.sleep(1)
        if path.stat().st_size == size:
            return True
    return False
