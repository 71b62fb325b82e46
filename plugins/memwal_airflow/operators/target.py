"""The table of a task, with the catalog that leases and records its jobs."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from memwal.catalog.records import ManagedTable
from memwal.errors import InvalidInputError
from memwal.jobs.policy import Policy
from memwal.util.records import JsonMapping
from memwal_airflow.hooks.storage_options import read_options

if TYPE_CHECKING:
    from memwal.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A table to run a job on."""

    catalog: Catalog  # Temporary for a table that is in no catalog.
    managed: ManagedTable
    storage_options_ref: str | None
    storage_options: dict[str, str] | None

    @property
    def name(self) -> str:
        return self.managed.name


@contextmanager
def open_target(
    table: str | None,
    uri: str | None,
    storage_options_ref: str | None,
    policy: Policy | JsonMapping | None,
) -> Iterator[Target]:
    """Find a table in the catalog by name, or register an address in a temporary catalog."""
    from memwal.catalog import Catalog

    if table is not None:
        with closing(Catalog()) as catalog:
            managed = catalog.get(table)
            ref = storage_options_ref or managed.storage_options_ref
            yield _target(catalog, managed, ref)
        return
    with (
        tempfile.TemporaryDirectory(prefix="memwal-") as folder,
        # With its own snapshot: Airflow's must not be rewritten with this table alone.
        closing(
            Catalog(
                f"sqlite:///{Path(folder, 'catalog.db')}", snapshot_path=Path(folder, "tables.json")
            )
        ) as catalog,
    ):
        # A message about this catalog, which ends with the task, would not help anyone.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        catalog.migrate()
        if not isinstance(policy, Policy):
            policy = Policy.from_dict(policy or {})
        managed = catalog.register("table", uri=uri or "", policy=policy)
        yield _target(catalog, managed, storage_options_ref)


def _target(catalog: Catalog, managed: ManagedTable, ref: str | None) -> Target:
    return Target(
        catalog=catalog,
        managed=managed,
        storage_options_ref=ref,
        storage_options=read_options(ref),
    )


def region_ids(regions: Iterable[object]) -> set[UUID]:
    """Parse the regions of an operator or a run; raise InvalidInputError unless all are UUIDs."""
    try:
        return {UUID(str(region)) for region in regions}
    except ValueError:
        raise InvalidInputError(
            f"{list(regions)} is not a list of regions; a region is named by its UUID."
        ) from None
