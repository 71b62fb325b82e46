"""The open maintenance plane for Lance MemWAL tables: embedded writers and readers, and jobs that
merge, index, publish and collect what they leave behind."""

from memwal import errors
from memwal.errors import MemWalError
from memwal.region.spec import RegionSpec
from memwal.setup import create, enable
from memwal.table import Table, open
from memwal.writer.options import WriterOptions

__all__ = [
    "MemWalError",
    "RegionSpec",
    "Table",
    "WriterOptions",
    "create",
    "enable",
    "errors",
    "open",
]
