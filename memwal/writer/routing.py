"""Routing schema of a table writer: table version, row schema, and router."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from memwal.base_table.commit import check_no_region_spec, current_spec
from memwal.base_table.snapshot import BaseTable
from memwal.region.router import Router
from memwal.writer.region_writer.rows import RowSchema


@dataclass(frozen=True, slots=True)
class RoutingSchema:
    """Row schema and router of one version of a table.

    Attributes
    ----------
    base : BaseTable
    row_schema : RowSchema
    spec_id : int
    router : Router
    columns_beside_key : tuple of str
        Columns outside the key by which rows are routed, which a delete needs too.
    """

    base: BaseTable
    row_schema: RowSchema
    spec_id: int
    router: Router
    columns_beside_key: tuple[str, ...] = ()

    @classmethod
    def of(cls, base: BaseTable, region_id: UUID | None = None) -> RoutingSchema:
        """Derive the routing schema from a version of the table.

        Parameters
        ----------
        region_id : UUID, optional
            The only region that rows go to, in a table whose regions are written by hand.

        Raises
        ------
        InvalidInputError
            The table's rows are routed by a column that is not part of the key.
        """
        row_schema = RowSchema.of(base)
        if region_id is not None:
            check_no_region_spec(base)
            return cls(base, row_schema, 0, Router.to_region(region_id))
        spec_id, spec = current_spec(base)
        # Lance allows routing by a column outside the key; a key could then be in two regions, and
        # a delete could not tell in which.
        spec.check_keys(base.primary_key)
        router = Router(spec, row_schema.schema)
        return cls(base, row_schema, spec_id, router, spec.columns_beside_key)
