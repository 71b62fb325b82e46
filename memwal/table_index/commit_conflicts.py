"""Which errors of Lance say that another commit came first."""

from __future__ import annotations

# A commit without rows meets no other's; then it is its mark that comes too late.
_WORDS = ("conflict", "concurrent", "contention", "stale sstable compaction")


def is_conflict(error: Exception) -> bool:
    """Whether a commit failed for another one, and may be tried again on top of it.

    Lance raises ``OSError`` and ``ValueError``, with the cause in the text only.
    """
    text = str(error).lower()
    return any(word in text for word in _WORDS)
