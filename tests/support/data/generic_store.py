"""A table that is also a store of lance-context: its schema has the description that it asks for.

Of tables that it creates, the primary key is text; it opens those with other keys as well.
"""

import json
import uuid

from support.data.tables import SCHEMA

REGION = uuid.uuid5(uuid.NAMESPACE_OID, "default")
"""The region that lance-context 0.6.7 makes in a table; its manifest has no spec id."""

_TYPES = {
    "id": {"type": "int64", "nullable": False},
    "n": {"type": "int64", "nullable": True},
    "text": {"type": "string", "large": False, "nullable": True},
}

STORE_SCHEMA = SCHEMA.with_metadata(
    {
        "lance-context:schema_spec": json.dumps({"columns": list(_TYPES.items())}),
        "lance-context:seal_on_add": "false",
    }
)
""":data:`support.data.tables.SCHEMA` of such a table."""
