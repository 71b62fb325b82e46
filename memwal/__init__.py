"""The open maintenance plane for Lance MemWAL tables: embedded writers and readers, and jobs that
merge, index and publish their rows and collect their garbage.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from memwal.lance_log import LIBRARY_FILTER, quieten_lance
from memwal.version import __version__, namesake

if TYPE_CHECKING:
    from memwal.create_table import create, enable
    from memwal.errors import MemWalError
    from memwal.fleet.tables import maintain
    from memwal.lsm.wal.position import WritePosition
    from memwal.reading_writer import Writer
    from memwal.region.spec import RegionSpec
    from memwal.resharding import add_region_spec, retire_region
    from memwal.storage.credentials import register_credentials
    from memwal.table import Table, open
    from memwal.writer.region_writer.options import WriterOptions

__all__ = [
    "__version__",
    "MemWalError",
    "RegionSpec",
    "Table",
    "WritePosition",
    "Writer",
    "WriterOptions",
    "add_region_spec",
    "aio",
    "create",
    "enable",
    "errors",
    "maintain",
    "open",
    "register_credentials",
    "retire_region",
]

_MODULES = {
    "MemWalError": "memwal.errors",
    "RegionSpec": "memwal.region.spec",
    "Table": "memwal.table",
    "WritePosition": "memwal.lsm.wal.position",
    "Writer": "memwal.reading_writer",
    "WriterOptions": "memwal.writer.region_writer.options",
    "add_region_spec": "memwal.resharding",
    "create": "memwal.create_table",
    "enable": "memwal.create_table",
    "maintain": "memwal.fleet.tables",
    "open": "memwal.table",
    "register_credentials": "memwal.storage.credentials",
    "retire_region": "memwal.resharding",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use: Lance takes a second, which a help text need not wait for."""
    if name in ("aio", "errors"):
        return import_module(f"memwal.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] not in sys.modules and gc.isenabled() and not gc.get_freeze_count():
        _load_uncollected(_MODULES[name])
    return getattr(import_module(_MODULES[name]), name)


def _load_uncollected(module: str) -> None:
    """Import a module while the garbage collector rests.

    It would look several times at all that Lance and memwal load, which stays: a tenth of the
    processor time of a first read.
    """
    gc.disable()
    try:
        import_module(module)
    finally:
        # Everything is of the oldest generation then, as if it had been looked at.
        gc.freeze()
        gc.unfreeze()
        gc.enable()


def __dir__() -> list[str]:
    """Return the public names, for completion in a shell."""
    return sorted(__all__)


quieten_lance(LIBRARY_FILTER)
_namesake = namesake()
if _namesake is not None:
    import warnings

    # The line that imports memwal, whose environment it is.
    warnings.warn(_namesake, RuntimeWarning, stacklevel=2)
