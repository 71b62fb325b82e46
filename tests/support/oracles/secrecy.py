"""Finding out whether logs hold what they must not."""

import logging

import pytest


class Secrecy:
    """Whether a value came out in logs; of the fixture ``secrecy``.

    Attributes
    ----------
    marker : str
        To be put into rows, keys and storage options.
    """

    marker = "marker-b1e6d0c7"

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def logged(self) -> list[str]:
        """Everything that was logged, as a formatter with traces would write it."""
        formatter = logging.Formatter("%(name)s %(message)s")
        return [formatter.format(record) for record in self._caplog.records]

    def check(self, *texts: object) -> None:
        """Fail if the marker is in a log record, in its arguments, or in what else is given."""
        arguments = [repr(record.args) for record in self._caplog.records]
        for text in (*self.logged(), *arguments, *map(str, texts)):
            assert self.marker not in text, f"this was shown: {text}"
