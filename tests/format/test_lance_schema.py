"""Changing single columns of a Lance schema in its stored form."""

import pyarrow as pa
from lance.schema import LanceSchema

from memwal.format.lance_manifest import make_nullable, replace_field_id


def _stored(field: pa.Field) -> tuple[str, bytes]:
    metadata, stored = LanceSchema.from_pyarrow(pa.schema([field])).__reduce__()[1]
    return metadata, stored


def test_a_column_gets_another_id_and_keeps_everything_else() -> None:
    field = pa.field("when", pa.timestamp("us", "UTC"), nullable=False, metadata={"unit": "day"})
    metadata, stored = _stored(field)
    changed = LanceSchema._from_protos(metadata, replace_field_id(stored, 7))
    assert changed.field("when").id() == 7
    assert changed.to_pyarrow().field("when").equals(field, check_metadata=True)


def test_a_column_may_be_made_to_hold_nulls() -> None:
    metadata, stored = _stored(pa.field("n", pa.int32(), nullable=False))
    changed = LanceSchema._from_protos(metadata, make_nullable(stored))
    assert changed.to_pyarrow().field("n") == pa.field("n", pa.int32(), nullable=True)
