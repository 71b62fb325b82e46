"""Floor 2: the objects of a table, wherever they are.

One small interface over local disks, S3, GCS, Azure and memory. What the protocol needs of a
store is put-if-absent that is durable when it returns; everything else is convenience.
"""

from memwal.storage.base import ObjectInfo, ObjectStore
from memwal.storage.location import TableLocation, redact
from memwal.storage.open import check_put_if_absent, open_store

__all__ = [
    "ObjectInfo",
    "ObjectStore",
    "TableLocation",
    "check_put_if_absent",
    "open_store",
    "redact",
]
