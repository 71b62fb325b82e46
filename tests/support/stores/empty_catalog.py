"""Empty catalogs on SQLite, copied from one: making the schema takes far longer than a copy."""

import functools
import tempfile
from pathlib import Path

from memwal.catalog import Catalog


@functools.cache
def _empty_catalog() -> bytes:
    with tempfile.TemporaryDirectory(prefix="memwal-catalog-") as folder:
        path = Path(folder) / "catalog.db"
        catalog = Catalog(f"sqlite:///{path}")
        catalog.migrate()
        catalog.close()
        return path.read_bytes()


def put_empty_catalog(path: Path) -> None:
    """Make an empty catalog at the path, and its folder, unless there is one already."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_empty_catalog())
