"""The S3 emulator of the tests, and a proxy that counts requests on their way to it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from support.stores.s3_emulator import running_emulator
from support.stores.store_gateway import Gateway, gateway_before

__all__ = ["Gateway", "gateway_before", "running_emulator"]
