"""The table that a task is about, with the catalog that it is run by."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from memwal.errors import InvalidInputError
from memwal_airflow.hooks.storage_options import read_options

if TYPE_CHECKING:
    from memwal.catalog import Catalog, ManagedTable
    from memwal.jobs.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A table that is to be worked on.

    Attributes
    ----------
    catalog : Catalog
        Of the installation; or one that is thrown away, for a table that is in none.
    managed : ManagedTable
        Its entry there.
    storage_options_ref : str or None
        Where its storage options are.
    storage_options : dict or None
        They themselves.
    """

    catalog: Catalog
    managed: ManagedTable
    storage_options_ref: str | None
    storage_options: dict[str, str] | None

    @property
    def name(self) -> str:
        """Its name in the catalog."""
        return self.managed.name


@contextmanager
def open_target(
    table: str | None,
    uri: str | None,
    storage_options_ref: str | None,
    policy: Policy | Mapping[str, Any] | None,
) -> Iterator[Target]:
    """Look a table up in the catalog; or, given its address, put it into one for the time being."""
    from memwal.catalog import Catalog

    if table is not None:
        catalog = Catalog()
        try:
            managed = catalog.get(table)
            ref = storage_options_ref or managed.storage_options_ref
            yield _target(catalog, managed, ref)
        finally:
            catalog.close()
        return
    with tempfile.TemporaryDirectory(prefix="memwal-") as folder:
        # A snapshot of its own too: Airflow's must not be written anew with this table alone.
        catalog = Catalog(
            f"sqlite:///{Path(folder, 'catalog.db')}", snapshot_path=Path(folder, "tables.json")
        )
        try:
            catalog.migrate()
            managed = catalog.register("table", uri=uri or "", policy=_policy(policy))
            yield _target(catalog, managed, storage_options_ref)
        finally:
            catalog.close()


def _target(catalog: Catalog, managed: ManagedTable, ref: str | None) -> Target:
    return Target(
        catalog=catalog,
        managed=managed,
        storage_options_ref=ref,
        storage_options=read_options(ref),
    )


def _policy(given: Policy | Mapping[str, Any] | None) -> Policy:
    from memwal.jobs.policy import Policy

    return given if isinstance(given, Policy) else Policy.from_dict(given or {})


def region_ids(regions: Collection[Any] | Iterable[Any]) -> set[UUID]:
    """Parse the regions of an operator or of a run.

    Raises
    ------
    InvalidInputError
        One of them is not a UUID.
    """
    try:
        return {UUID(str(region)) for region in regions}
    except ValueError:
        raise InvalidInputError(
            f"{list(regions)} is no list of regions; a region is named by its UUID."
        ) from None
