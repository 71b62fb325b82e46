"""The object store of a simulated world: exact, and with a clock of its own."""

import builtins
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from simulation.world import Process, World

from memwal.errors import (
    ConflictError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from memwal.format.paths import CHANGE_TRACE_KEY
from memwal.storage.object_store import Data, ObjectInfo, ObjectStore

Objects = dict[str, tuple[bytes, datetime]]


class SimulatedStore(ObjectStore):
    """What one process sees of the objects: each call is a request, which may go wrong."""

    uri = "simulated://table"
    is_local = False

    def __init__(self, world: World, process: Process, objects: Objects) -> None:
        self._world = world
        self._process = process
        self._objects = objects

    def create(self, key: str, data: Data) -> None:
        self._world.doze(self._process)
        self._ask(f"create {key}", partial(self._create, key, bytes(data)))

    def put(self, key: str, data: Data) -> None:
        if key == CHANGE_TRACE_KEY:
            # By a thread of its own, which the world does not schedule; no participant reads it.
            return
        self._ask(f"put {key}", partial(self._put, key, bytes(data)))

    def replace(self, key: str, data: Data, *, expected: bytes) -> None:
        self._ask(f"replace {key}", partial(self._replace, key, bytes(data), expected))

    def get(self, key: str) -> bytes:
        content: bytes = self._ask(f"get {key}", partial(self._get, key))
        return content

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def head(self, key: str) -> ObjectInfo | None:
        info: ObjectInfo | None = self._ask(f"head {key}", partial(self._head, key))
        return info

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found: list[ObjectInfo] = self._ask(f"list {prefix}", partial(self._list, prefix))
        yield from found

    def list_folders(self, prefix: str) -> builtins.list[str]:
        inside = f"{prefix.removesuffix('/')}/"
        keys: builtins.list[ObjectInfo] = self._ask(f"list {prefix}", partial(self._list, prefix))
        names = (info.key.removeprefix(inside) for info in keys)
        return sorted({name.partition("/")[0] for name in names if "/" in name})

    def delete(self, key: str) -> None:
        self._world.doze(self._process)
        self._ask(f"delete {key}", partial(self._delete, key))

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)

    def delete_folder(self, prefix: str) -> None:
        # No folders here: it is a listing, and a request for each object in it.
        for info in self.list(prefix):
            self.delete(info.key)

    def delete_stale_temporaries(self, prefix: str, *, older_than: timedelta) -> int:
        return 0

    def sync(self, prefix: str) -> None:
        pass

    def barrier(self, *, up_to: str | None = None) -> None:
        pass

    def _ask(self, name: str, effect: Any) -> Any:
        return self._world.request(self._process, name, effect, StoreUnavailableError)

    # What the store does, at one moment

    def _create(self, key: str, data: bytes) -> None:
        if key in self._objects:
            raise ObjectExistsError(key)
        self._put(key, data)

    def _put(self, key: str, data: bytes) -> None:
        self._objects[key] = data, self._world.time()

    def _replace(self, key: str, data: bytes, expected: bytes) -> None:
        if key not in self._objects or self._objects[key][0] != expected:
            raise ConflictError(key)
        self._put(key, data)

    def _get(self, key: str) -> bytes:
        if key not in self._objects:
            raise ObjectNotFoundError(key)
        return self._objects[key][0]

    def _head(self, key: str) -> ObjectInfo | None:
        if key not in self._objects:
            return None
        data, modified = self._objects[key]
        return ObjectInfo(key, len(data), modified)

    def _list(self, prefix: str) -> builtins.list[ObjectInfo]:
        inside = f"{prefix.removesuffix('/')}/" if prefix else ""
        return [
            ObjectInfo(key, len(data), modified)
            for key, (data, modified) in sorted(self._objects.items())
            if key.startswith(inside)
        ]

    def _delete(self, key: str) -> None:
        self._objects.pop(key, None)
