"""A store whose put-if-absent overwrites, as servers do that do not know the condition."""

from support.stores.faulty_store import FaultyStore

from memwal.storage.object_store import Data


class CarelessStore(FaultyStore):
    """A faulty store that has no put-if-absent."""

    def create(self, key: str, data: Data) -> None:
        self._call("create", key, lambda: self.inner.put(key, data))
