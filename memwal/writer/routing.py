"""Routing schema of a table writer: table version, row schema, and router."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from memwal.base_table.details import check_no_region_spec, current_spec
from memwal.base_table.snapshot import BaseTable
from memwal.region.router import Router
from memwal.writer.region_writer.rows import RowShape, stored_shape


@dataclass(frozen=True, slots=True)
class Form:
    """What rows look like and where they go, as of one version of the table.

    Attributes
    ----------
    base : BaseTable
    shape : RowShape
    spec_id : int
    router : Router
    columns_beside_key : tuple of str
        Columns outside the key that rows are routed by, which a delete must give too.
    """

    base: BaseTable
    shape: RowShape
    spec_id: int
    router: Router
    columns_beside_key: tuple[str, ...] = ()

    @classmethod
    def of(cls, base: BaseTable, region_id: UUID | None = None) -> Form:
        """Derive it from a version of the table.

        Parameters
        ----------
        region_id : UUID, optional
            The one region that all rows go to, in a table whose regions are written by hand.

        Raises
        ------
        InvalidInputError
            The table's rows are routed by a column that is not part of the key.
        """
        shape = stored_shape(base)
        if region_id is not None:
            check_no_region_spec(base)
            return cls(base, shape, 0, Router.to_region(region_id))
        spec_id, spec = current_spec(base)
        # Lance lets rows be routed by a column outside the key; one key could then be in two
        # regions, and a delete would not know in which.
        spec.check_keys(base.primary_key)
        router = Router(spec, shape.schema)
        return cls(base, shape, spec_id, router, spec.columns_beside_key)
