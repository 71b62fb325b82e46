"""Every registered kind: its names, and that an index of it can be built again from its spec."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.indices import IndexConfig

from memwal.errors import InvalidInputError
from memwal.lsm.indexes.kinds import KINDS, Family, IndexKind, IndexSpec, kind_of, read_index_spec
from memwal.storage.location import TableLocation

DIMENSION = 8
ROWS = 300
POINT = pa.field(
    "point",
    pa.struct([pa.field("x", pa.float64(), False), pa.field("y", pa.float64(), False)]),
    metadata={"ARROW:extension:name": "geoarrow.point", "ARROW:extension:metadata": "{}"},
)

# Column, and what pylance is asked for: other parameters than Lance's defaults, where it has any.
SCALAR: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "BTREE": ("n", IndexConfig("btree", {"zone_size": 7}), {}),
    "BITMAP": ("n", "BITMAP", {}),
    "LABEL_LIST": ("labels", "LABEL_LIST", {}),
    "NGRAM": ("text", "NGRAM", {}),
    "ZONEMAP": ("n", IndexConfig("zonemap", {"rows_per_zone": 9}), {}),
    "BLOOMFILTER": (
        "n",
        IndexConfig("bloomfilter", {"number_of_items": 20, "probability": 0.01}),
        {},
    ),
    "RTREE": ("point", IndexConfig("rtree", {"page_size": 11}), {}),
    "MINHASHLSH": (
        "text",
        IndexConfig("minhashlsh", {"num_hashes": 64, "num_bands": 8}),
        {},
    ),
    "FM": ("text", IndexConfig("fm", {}), {}),
    "INVERTED": ("text", "INVERTED", {"with_position": True, "stem": False}),
}
VECTOR: dict[str, dict[str, Any]] = {
    "IVF_FLAT": {},
    "IVF_PQ": {"num_sub_vectors": 4, "num_bits": 4},
    "IVF_SQ": {},
    "IVF_RQ": {"num_bits": 3},
    "IVF_HNSW_FLAT": {"m": 12, "ef_construction": 60, "max_level": 5},
    "IVF_HNSW_PQ": {"num_sub_vectors": 4, "num_bits": 4},
    "IVF_HNSW_SQ": {"m": 8},
}
NOT_PARALLEL = ("FM", "IVF_SQ", "IVF_HNSW_SQ")
PAGE = Path(__file__).parents[3] / "docs" / "indexes.md"


def documented(family: Family, answers: str) -> str:
    """Row of a family of kinds in the table of ``docs/indexes.md``."""
    kinds = [kind for kind in KINDS if kind.family is family]
    never = [
        f"`{kind.pylance_name}`"
        for kind in kinds
        if not kind.parallel and kind.parallel_parameter is None
    ]
    with_parameter = [
        f"`{kind.pylance_name}` if it has `{kind.parallel_parameter}`"
        for kind in kinds
        if kind.parallel_parameter is not None
    ]
    parts = f"all but {', '.join(never)}" if never else "all"
    named = ", ".join(f"`{kind.pylance_name}`" for kind in kinds)
    return f"| {answers} | {named} | {'; '.join([parts, *with_parameter])} |"


def test_the_page_of_indexes_has_every_kind() -> None:
    families = {
        Family.SCALAR: "conditions on values",
        Family.TEXT: "full-text queries",
        Family.VECTOR: "nearest vectors",
    }
    rows = "\n".join(documented(family, answers) for family, answers in families.items())
    assert f"|---|---|---|\n{rows}\n\n" in PAGE.read_text(), rows


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Return the address of a data set with a column for each kind, in two fragments."""
    vectors = np.random.default_rng(1).standard_normal((ROWS, DIMENSION)).astype("float32")
    columns = [
        pa.array([i % 10 for i in range(ROWS)]),
        pa.array([f"word{i % 31} and more" for i in range(ROWS)]),
        pa.array([[f"label {i % 5}"] for i in range(ROWS)]),
        pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSION),
        pa.array([{"x": i, "y": -i} for i in range(ROWS)], POINT.type),
    ]
    names = ("n", "text", "labels", "vector")
    fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=False)]
    rows = pa.table(columns, schema=pa.schema([*fields, POINT]))
    path = str(tmp_path / "table")
    lance.write_dataset(rows, path, data_storage_version="2.2", max_rows_per_file=ROWS // 2)
    return path


def build(uri: str, name: str) -> None:
    """Let pylance build an index of a kind, named after it."""
    dataset = lance.dataset(uri)
    if name in VECTOR:
        dataset.create_index("vector", name, name=name, num_partitions=2, **VECTOR[name])
        return
    column, index_type, options = SCALAR[name]
    dataset.create_scalar_index(column, index_type, name=name, **options)


def requested(name: str) -> dict[str, Any]:
    """Return the parameters that :func:`build` asks for."""
    if name in VECTOR:
        return VECTOR[name]
    _, index_type, options = SCALAR[name]
    return index_type.parameters if isinstance(index_type, IndexConfig) else options


def describe(uri: str, name: str) -> Any:
    (description,) = (d for d in lance.dataset(uri).describe_indices() if d.name == name)
    return description


def plain(parameters: Any) -> dict[str, Any]:
    """Return parameters in a form that can be compared: arrays as lists."""
    return {
        key: value.to_pylist() if isinstance(value, pa.Array) else value
        for key, value in parameters.items()
    }


@pytest.mark.few(8)
@pytest.mark.parametrize("name", [*SCALAR, *VECTOR])
def test_an_index_is_built_again_from_its_spec(uri: str, name: str) -> None:
    build(uri, name)
    description = describe(uri, name)
    kind = kind_of(description)
    assert (kind.lance_name, kind.pylance_name) == (description.index_type, name)
    assert kind.is_vector == (name in VECTOR)

    location = TableLocation(uri, {})
    spec = read_index_spec(location, description)
    assert requested(name).items() <= plain(spec.parameters).items()
    dataset = lance.dataset(uri)
    column = description.field_names[0]
    segment = spec.build(dataset, name=f"{name} again", column=column)
    assert (segment is None) == kind.commit_only
    if segment is not None:
        dataset.commit_existing_index_segments(f"{name} again", column, [segment])

    again = describe(uri, f"{name} again")
    assert (again.index_type, again.type_url) == (description.index_type, description.type_url)
    assert again.num_rows_indexed == ROWS
    assert plain(read_index_spec(location, again).parameters) == plain(spec.parameters)


@pytest.mark.few(8)
@pytest.mark.parametrize("name", [*SCALAR, *VECTOR])
def test_parts_are_joined_into_an_index_with_the_same_parameters(uri: str, name: str) -> None:
    build(uri, name)
    description = describe(uri, name)
    location = TableLocation(uri, {})
    spec = read_index_spec(location, description)
    if not spec.parallel:
        assert name in NOT_PARALLEL
        return
    dataset = lance.dataset(uri)
    column, joined = description.field_names[0], f"{name} in parts"
    parts = [
        spec.build(dataset, name=joined, column=column, fragment_ids=[fragment])
        for fragment in (0, 1)
    ]
    segment = dataset.merge_existing_index_segments(parts)
    dataset.commit_existing_index_segments(joined, column, [segment])

    again = describe(uri, joined)
    assert len(again.segments) == 1
    assert again.num_rows_indexed == ROWS
    assert plain(read_index_spec(location, again).parameters) == plain(spec.parameters)


def test_each_kind_is_registered_once_and_has_its_test() -> None:
    assert len({kind.lance_name for kind in KINDS}) == len(KINDS)
    assert sorted(kind.pylance_name for kind in KINDS if kind.refusal is None) == sorted(
        [*SCALAR, *VECTOR]
    )


@pytest.mark.parametrize("name", ["Json", "SomethingNew"])
def test_a_kind_that_generations_cannot_carry_is_refused(name: str) -> None:
    description: Any = SimpleNamespace(index_type=name)
    kind = kind_of(description)
    assert (kind.lance_name, kind.is_vector, kind.is_text) == (name, False, False)
    assert not IndexSpec(kind).parallel
    with pytest.raises(InvalidInputError, match=str(kind.refusal)):
        read_index_spec(TableLocation("memory://table", {}), description)


def registered(name: str) -> IndexKind:
    (kind,) = (kind for kind in KINDS if kind.pylance_name == name)
    return kind


def test_a_rotation_that_cannot_be_shared_is_not_built_in_parts() -> None:
    kind = registered("IVF_RQ")
    assert IndexSpec(kind, {"rabitq_model": "{}"}).parallel
    assert not IndexSpec(kind, {"num_bits": 3}).parallel


def test_what_readers_ask_of_kinds() -> None:
    assert [kind.pylance_name for kind in KINDS if kind.finds_keys] == ["BTREE"]
    assert [kind.pylance_name for kind in KINDS if kind.memtable_index] == ["INVERTED"]
    assert [kind.pylance_name for kind in KINDS if kind.exact_distances] == [
        "IVF_FLAT",
        "IVF_HNSW_FLAT",
    ]
