"""Hook for users' own DAGs: opens tables and the catalog with an Airflow connection."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from memwal.catalog.records import NAME
from memwal.errors import MemWalError
from memwal_airflow.hooks.connection import TEST_URI, storage_options

if TYPE_CHECKING:
    from memwal.catalog import Catalog
    from memwal.table import Table


class MemWalHook(BaseHook):
    """Opens tables with the storage options of an Airflow connection.

    Parameters
    ----------
    memwal_conn_id : str, default "memwal_default"
        A connection of type ``memwal``, or of another type that holds storage options.

    Examples
    --------
    >>> MemWalHook("lake").table("s3://lake/flights.lance").status()
    """

    conn_name_attr = "memwal_conn_id"
    default_conn_name = "memwal_default"
    conn_type = "memwal"
    hook_name = "MemWAL"

    def __init__(self, memwal_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.memwal_conn_id = memwal_conn_id

    def get_conn(self) -> dict[str, str]:
        """Return the storage options, see :meth:`storage_options`."""
        return self.storage_options()

    def storage_options(self) -> dict[str, str]:
        """Read the connection, and return its storage options in Lance's names.

        The options are secrets: do not return them from a task, and do not log them.
        """
        return storage_options(self.get_connection(self.memwal_conn_id))

    def catalog(self) -> Catalog:
        """Open the catalog of ``$MEMWAL_CATALOG_URL``; close it after use."""
        from memwal.catalog import Catalog

        return Catalog()

    def table(self, name_or_uri: str) -> Table:
        """Open a table with the options of this connection.

        Parameters
        ----------
        name_or_uri : str
            Name of a managed table, or an address such as ``s3://lake/flights.lance``.

        Raises
        ------
        ObjectNotFoundError
            No table of the catalog has this name.
        """
        from memwal.fleet import open_managed
        from memwal.table import open as open_table

        options = self.storage_options()
        if NAME.fullmatch(name_or_uri) is None:
            return open_table(name_or_uri, storage_options=options)
        with closing(self.catalog()) as catalog:
            managed = catalog.get(name_or_uri)
        return open_managed(managed, storage_options=options)

    def test_connection(self) -> tuple[bool, str]:
        """Check that the address of the form can be listed, and that it supports put-if-absent."""
        from memwal.storage.location import TableLocation
        from memwal.storage.open import check_put_if_absent

        connection = self.get_connection(self.memwal_conn_id)
        uri = connection.extra_dejson.get(TEST_URI)
        try:
            options = storage_options(connection)
            if not uri:
                return True, "The fields are valid. Give an address to test, to try them."
            location = TableLocation(uri, options)
            if location.local_path is not None and not location.local_path.is_dir():
                return False, f"{location.uri} is not a folder."
            is_empty = not list(islice(location.store.list(""), 1))
            check_put_if_absent(location.store)
        except MemWalError as error:
            return False, str(error)
        content = "it is empty" if is_empty else "it has objects"
        return True, f"{location.uri} can be listed ({content}), and supports put-if-absent."
