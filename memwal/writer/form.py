"""What a writer knows of its table."""

from __future__ import annotations

from dataclasses import dataclass

from memwal.region.routing import Router
from memwal.table_index.base_table import BaseTable
from memwal.table_index.region_specs import current_spec
from memwal.writer.rows import RowShape


@dataclass(frozen=True, slots=True)
class Form:
    """What rows look like and where they go, as of one version of the table."""

    base: BaseTable
    shape: RowShape
    spec_id: int
    router: Router

    @classmethod
    def of(cls, base: BaseTable) -> Form:
        """Derive it from a version of the table.

        Raises
        ------
        InvalidInputError
            The table's rows are routed by a column that is not part of the key.
        """
        spec_id, spec = current_spec(base)
        # Lance lets rows be routed by a column outside the key; one key could then be in two
        # regions, and a delete would not know in which.
        spec.check_keys(base.primary_key)
        shape = RowShape(base.identified_schema, base.primary_key)
        return cls(base, shape, spec_id, Router(spec, shape.schema))
