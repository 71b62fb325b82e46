"""Print the folder for the files of the default tests: in memory if there is room for them.

They make and remove hundreds of thousands of small files, which on a disk costs a fifth of their
time. No default test is about a disk: whether durable steps come in the right order is seen by the
tests of the loss of power, which keep their own account, and the slow tests use the disk.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev", "shm")
NEEDED_BYTES = 4 << 30


def main() -> None:
    """Print it."""
    folder = Path(tempfile.gettempdir())
    if os.access(MEMORY, os.W_OK):
        memory = os.statvfs(MEMORY)
        # Some tests start programs that they write there.
        if memory.f_bavail * memory.f_frsize >= NEEDED_BYTES and not memory.f_flag & os.ST_NOEXEC:
            folder = MEMORY
    print(folder)


if __name__ == "__main__":
    main()
