"""A process that wants names in a store that refuses nobody.

``_commit_child.py URL FOLDER WHO COUNT`` tries to create so many objects, each with WHO in it, and
prints the names that it got.
"""

from __future__ import annotations

import sys

from support.stores.careless_store import CarelessStore

from memwal.catalog.database import Database
from memwal.catalog.external_manifest import ExternalManifestStore
from memwal.errors import ObjectExistsError
from memwal.storage.local import LocalStore

url, folder, who, count = sys.argv[1:]
store = ExternalManifestStore(CarelessStore(LocalStore(folder)), Database(url))
for number in range(int(count)):
    key = f"_mem_wal/region/wal/{number}.arrow"
    try:
        store.create(key, f"{who} {number}".encode())
    except ObjectExistsError:
        continue
    print(key, flush=True)
