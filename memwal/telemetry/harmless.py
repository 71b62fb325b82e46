"""What is told about work must not be what makes it fail."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def harmless() -> Iterator[None]:
    """Log what goes wrong in the block, or in the function, and go on behind it.

    Providers, processors and exporters are chosen by whoever runs the process. Only the kind of
    an error is logged: its text may show what it was about.
    """
    try:
        yield
    except Exception as error:
        logger.warning("metrics or traces are incomplete: %s", type(error).__name__)
