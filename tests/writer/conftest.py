"""What tests of the writer share."""

import logging

import pytest
from support.oracles.secrecy import Secrecy


@pytest.fixture
def secrecy(caplog: pytest.LogCaptureFixture) -> Secrecy:
    """Record all logs of the test, of any level and library."""
    caplog.set_level(logging.DEBUG)
    return Secrecy(caplog)
