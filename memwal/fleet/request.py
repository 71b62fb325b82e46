"""From what was asked for to what is to be done: due or not, with whom, within which limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from memwal.errors import MemWalError
from memwal.fleet.order import Order, Skipped, Why
from memwal.fleet.perform import Perform, perform_here
from memwal.fleet.tables import Survey, check_regions, open_managed, survey
from memwal.maintenance.due import Due
from memwal.maintenance.results import JobResult, TaskRunner

if TYPE_CHECKING:
    from memwal.catalog import Catalog, ManagedTable
    from memwal.catalog.setbacks import HeldRecord
    from memwal.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the caller of :func:`memwal.fleet.jobs.run_job` asked for."""

    catalog: Catalog
    managed: ManagedTable
    job: str
    force: bool
    dry_run: bool
    regions: tuple[UUID, ...] | None
    index: str | None
    max_tasks: int
    run_bytes: int | None
    decided: Due | None
    storage_options: Mapping[str, str] | None
    external_id: str | None

    def prepare(self) -> tuple[Table, Order | Skipped]:
        """Open the table and decide what is to be done."""
        table = open_managed(self.managed, storage_options=self.storage_options)
        if self.regions is not None:
            check_regions(table, self.regions)
        return table, self._decide(table)

    def rehearse(self, run: TaskRunner, perform: Perform | None) -> JobResult | Skipped:
        """Tell what would be done; a collection can do so itself."""
        table, order = self.prepare()
        if isinstance(order, Skipped):
            return order
        if self.job == "gc":
            if perform is not None:
                return perform(order, lambda: None)
            return perform_here(table, order, run=run)
        what = "it was asked for" if self.decided is None else self.decided.reason
        if self.decided is None and not self.force:
            what = self._surveyed(table).due[self.job].reason
        return self.skipped(Why.DRY_RUN, f"it would run: {what}")

    def skipped(self, why: Why, reason: str) -> Skipped:
        """Nothing is done."""
        return Skipped(job=self.job, table=self.managed.name, why=why, reason=reason)

    def record_failure(self, error: MemWalError) -> None:
        """Record a run that did not get as far as to begin."""
        run_id = self.catalog.start_run(self.managed.name, self.job, external_id=self.external_id)
        self.catalog.finish_run(run_id, error=f"{type(error).__name__}: {error}")

    def _decide(self, table: Table) -> Order | Skipped:
        if self.force:
            return self._order(self.regions, ())
        if self.decided is not None:
            waiting = _waiting(self.catalog.setbacks.held(self.managed.name))
            return self._ordered(self.decided, waiting)
        found = self._surveyed(table)
        return self._ordered(found.due[self.job], _waiting(found.held))

    def _surveyed(self, table: Table) -> Survey:
        return survey(
            self.catalog, self.managed, table=table, regions=self.regions, index=self.index
        )

    def _ordered(self, one: Due, waiting: Sequence[UUID]) -> Order | Skipped:
        if one.held_back is not None and one.reason is None:
            return self.skipped(Why.QUIET, one.held_back)
        if one.reason is None:
            if self.job == "merge" and waiting:
                return self.skipped(
                    Why.HELD,
                    f"{len(waiting)} regions are held and wait for their next try, and no other is "
                    "due",
                )
            return self.skipped(Why.NOT_DUE, "no limit of its policy is reached")
        if self.job != "merge":
            return self._order(None, ())
        asked = None if self.regions is None else set(self.regions)
        regions = [UUID(region) for region in one.regions]
        return self._order([r for r in regions if asked is None or r in asked], waiting)

    def _order(self, regions: Collection[UUID] | None, skip: Sequence[UUID]) -> Order:
        return Order(
            job=self.job,
            table=self.managed,
            regions=None if regions is None else tuple(regions),
            skip=tuple(skip),
            index=self.index,
            run_bytes=self.run_bytes if self.job == "merge" else None,
            max_tasks=self.max_tasks,
            dry_run=self.dry_run,
            force=self.force,
        )


def _waiting(held: Collection[HeldRecord]) -> list[UUID]:
    return [UUID(record.region_id) for record in held if record.waiting]
