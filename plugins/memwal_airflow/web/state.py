"""State of the app between requests."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from fastapi import Depends

from memwal.catalog import Catalog


@cache
def get_catalog() -> Catalog:
    """Return the catalog of ``$MEMWAL_CATALOG_URL``, with its connections, for all requests."""
    return Catalog()


CatalogDep = Annotated[Catalog, Depends(get_catalog)]
