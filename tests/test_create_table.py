"""Setting tables up: new ones, and MemWAL on tables that exist."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from lancedb.pydantic import LanceModel
from support.data.tables import SCHEMA, listing, rows, state
from support.stores.faulty_store import TABLE_MANIFEST, FaultyStores

import memwal
from memwal.errors import (
    ArgumentTypeError,
    InvalidInputError,
    MemWalError,
    StoreAccessError,
    TableSetupError,
    UnsupportedStoreError,
)
from memwal.region.manifest_store import read_manifests
from memwal.resharding import add_region_spec
from memwal.storage.location import TableLocation

UNSHARDED = memwal.RegionSpec.unsharded()

WIDE = pa.schema(
    [
        pa.field("part", pa.string(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)
EVERY_SPEC = [
    memwal.RegionSpec.unsharded(),
    memwal.RegionSpec.bucket("id", 3),
    memwal.RegionSpec.identity("part"),
    memwal.RegionSpec.identity("at", immutable=True),
    memwal.RegionSpec.multi_bucket(["part", "id"], 3),
    memwal.RegionSpec.truncate("id", 2),
    memwal.RegionSpec.truncate("part", 3),
    memwal.RegionSpec.year("part"),
    memwal.RegionSpec.month("at", immutable=True),
    memwal.RegionSpec.day("at", immutable=True),
    memwal.RegionSpec.hour("at", immutable=True),
    memwal.RegionSpec.expression("abs(murmur3_multi(col0, col1)) % 3", ["part", "id"], pa.int32()),
    memwal.RegionSpec.combine(
        memwal.RegionSpec.month("part"),
        memwal.RegionSpec.hour("at", immutable=True),
        memwal.RegionSpec.bucket("id", 2),
    ),
]


def wide_rows(values: dict[int, int]) -> pa.Table:
    """Rows of :data:`WIDE`, whose columns but ``n`` follow from the key."""
    return pa.table(
        {
            "part": [f"2026-0{key % 3 + 1}-01" for key in values],
            "id": list(values),
            "n": list(values.values()),
            "at": [key * 10**13 for key in values],
        },
        schema=WIDE,
    )


def wide_state(found: Any) -> dict[int, int]:
    table = found.scan(columns=["id", "n"]).to_table()
    assert len(set(table.column("id").to_pylist())) == table.num_rows
    return dict(zip(table.column("id").to_pylist(), table.column("n").to_pylist(), strict=True))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def create(uri: str, **changes: Any) -> memwal.Table:
    options: dict[str, Any] = {
        "schema": SCHEMA,
        "primary_key": ["id"],
        "region_spec": UNSHARDED,
        **changes,
    }
    return memwal.create(uri, **options)


def plain(uri: str, **options: Any) -> lance.LanceDataset:
    """A Lance table without MemWAL, with two rows."""
    return lance.write_dataset(rows({1: 1, 2: 2}), uri, **options)


def everything(uri: str) -> dict[str, tuple[int, int]]:
    path = Path(uri)
    return listing(path) if path.exists() else {}


class TestCreate:
    def test_leaves_nothing_if_another_process_creates_it_first(
        self, uri: str, faults: FaultyStores
    ) -> None:
        theirs: set[str] = set()

        def create_first() -> None:
            before = everything(uri)
            lance.write_dataset(rows({1: 1}), uri)
            theirs.update(everything(uri).keys() - before.keys())

        faults.of(TableLocation(uri)).act("create", create_first, key=TABLE_MANIFEST)
        with pytest.raises(TableSetupError):
            create(uri)
        assert everything(uri).keys() == theirs

    def test_makes_an_empty_table(self, uri: str) -> None:
        table = create(uri, maintained_indexes=["n_idx"])

        assert table.uri == uri
        assert table.primary_key == ("id",)
        assert table.schema.names == SCHEMA.names
        assert table.base().details.maintained_indexes == ("n_idx",)
        assert {i.name for i in table.base().dataset.describe_indices()} >= {"n_idx"}
        assert state(table) == {}
        assert state(memwal.open(uri)) == {}

    @pytest.mark.parametrize(
        ("spec", "regions"),
        [
            (memwal.RegionSpec.unsharded(), 1),
            (memwal.RegionSpec.bucket("id", 5), 5),
            (memwal.RegionSpec.identity("id"), 0),
        ],
        ids=str,
    )
    def test_remembers_how_it_is_divided(
        self, uri: str, spec: memwal.RegionSpec, regions: int
    ) -> None:
        create(uri, region_spec=spec)

        spec_id, found = memwal.open(uri).region_spec()

        assert (spec_id, found) == (1, spec)
        assert len(memwal.open(uri).region_ids()) == regions

    @pytest.mark.few(3)
    @pytest.mark.parametrize("spec", EVERY_SPEC, ids=str)
    def test_divided_in_every_way(self, uri: str, spec: memwal.RegionSpec) -> None:
        table = create(uri, schema=WIDE, primary_key=["part", "id"], region_spec=spec)

        assert table.region_spec() == (1, spec)
        base = table.base()
        assert base.details.region_specs == (spec.bind(base.field_ids(), base.schema),)
        with table.writer() as writer:
            writer.upsert(wide_rows({1: 1, 2: 1, 3: 1}))
            writer.flush()
            writer.upsert(wide_rows({2: 2}))
            assert wide_state(writer) == {1: 1, 2: 2, 3: 1}
        manifests = read_manifests(table.location.store)
        assert manifests
        values = {field_id for m in manifests.values() for field_id, _ in m.region_fields}
        assert values == {field.field_id for field in spec.fields} or spec == UNSHARDED
        assert {m.spec_id for m in manifests.values()} == {1}
        table.merge()
        memwal.open(uri).upsert(wide_rows({3: 3}))
        assert set(read_manifests(table.location.store)) == set(manifests)
        assert wide_state(table) == {1: 1, 2: 2, 3: 3}

    def test_with_manual_regions(self, uri: str) -> None:
        table = create(uri, region_spec=None)
        assert table.base().details.region_specs == ()
        assert table.region_ids() == []
        with pytest.raises(TableSetupError):
            table.region_spec()
        assert state(table) == {}

    def test_a_renamed_region_column_is_followed(self, uri: str) -> None:
        """A column of the key cannot be renamed while MemWAL is on."""
        spec = memwal.RegionSpec.hour("at", immutable=True)
        table = create(uri, schema=WIDE, primary_key=["part", "id"], region_spec=spec)
        table.upsert(wide_rows({1: 1, 2: 1}))
        regions = set(read_manifests(table.location.store))
        table.base().dataset.alter_columns({"path": "at", "name": "moment"})
        assert table.region_spec() == (1, memwal.RegionSpec.hour("moment", immutable=True))
        table.upsert(wide_rows({1: 2, 2: 2}).rename_columns(["part", "id", "n", "moment"]))
        assert set(read_manifests(table.location.store)) == regions
        assert wide_state(table) == {1: 2, 2: 2}

    def test_a_dropped_region_column_takes_no_writes(self, uri: str) -> None:
        spec = memwal.RegionSpec.year("at", immutable=True)
        table = create(uri, schema=WIDE, primary_key=["part", "id"], region_spec=spec)
        table.upsert(wide_rows({1: 1}))
        table.base().dataset.drop_columns(["at"])
        with pytest.raises(TableSetupError):
            table.writer()
        assert table.region_ids()
        table.merge()
        assert wide_state(table) == {1: 1}
        table = add_region_spec(uri, memwal.RegionSpec.identity("part"))
        table.upsert(wide_rows({1: 2}).drop_columns(["at"]))
        assert wide_state(table) == {1: 2}

    def test_keeps_metadata_of_the_schema(self, uri: str) -> None:
        schema = SCHEMA.set(1, SCHEMA.field(1).with_metadata({"unit": "m"})).with_metadata(
            {"owner": "me"}
        )
        table = create(uri, schema=schema)
        assert table.schema.field("n").metadata[b"unit"] == b"m"

    @pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
    def test_with_each_storage_version(self, uri: str, version: str) -> None:
        table = create(uri, data_storage_version=version)
        with table.writer() as writer:
            writer.upsert(rows({1: 1, 2: 2}))
            writer.flush()
            assert state(table) == {1: 1, 2: 2}
            table.merge()
            writer.delete(pa.array([1]))
        assert state(table) == {2: 2}
        table.merge()
        assert state(table) == {2: 2}

    @pytest.mark.parametrize(
        "changes",
        [
            pytest.param({"primary_key": ["nope"]}, id="unknown key"),
            pytest.param({"primary_key": ["id", "id"]}, id="key twice"),
            pytest.param(
                {
                    "schema": pa.schema([("id", pa.float64()), ("n", pa.int64())]),
                },
                id="key type",
            ),
            pytest.param(
                {"schema": pa.schema([("id", pa.timestamp("us")), ("n", pa.int64())])},
                id="key time",
            ),
            pytest.param(
                {"region_spec": memwal.RegionSpec.bucket("n", 4)}, id="divided by no key column"
            ),
            pytest.param(
                {"region_spec": memwal.RegionSpec.bucket("nope", 4)}, id="divided by nothing"
            ),
            pytest.param(
                {"region_spec": memwal.RegionSpec.year("id")}, id="divided by a type without years"
            ),
            pytest.param(
                {"region_spec": memwal.RegionSpec.expression("col0", ["id"], pa.string())},
                id="an expression of another type",
            ),
            pytest.param(
                {
                    "region_spec": memwal.RegionSpec.combine(
                        memwal.RegionSpec.bucket("id", 2), memwal.RegionSpec.truncate("text", 2)
                    )
                },
                id="divided by a key column and by another",
            ),
            pytest.param({"maintained_indexes": ["n"]}, id="index that names no column"),
            pytest.param({"maintained_indexes": ["nope_idx"]}, id="index on nothing"),
            pytest.param(
                {"schema": SCHEMA.append(pa.field("_tombstone", pa.bool_()))},
                id="column of our own name",
            ),
            pytest.param(
                {"schema": SCHEMA.append(pa.field("_rowid", pa.uint64()))},
                id="column of Lance's name",
            ),
            pytest.param({"schema": SCHEMA.append(pa.field("n", pa.int64()))}, id="column twice"),
        ],
    )
    def test_refuses_what_does_not_fit_and_writes_nothing(
        self, uri: str, changes: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidInputError):
            create(uri, **changes)
        assert everything(uri) == {}

    def test_refuses_an_index_that_cannot_be_built(self, uri: str) -> None:
        schema = SCHEMA.append(pa.field("v", pa.list_(pa.float32(), 4)))
        with pytest.raises(MemWalError):
            create(uri, schema=schema, maintained_indexes=["v_idx"])

    def test_refuses_where_a_table_is(self, uri: str) -> None:
        table = create(uri)
        table.upsert(rows({1: 1}))
        before = everything(uri)
        with pytest.raises(TableSetupError):
            create(uri)
        assert everything(uri) == before

        other = f"{uri}-plain"
        plain(other)
        before = everything(other)
        with pytest.raises(TableSetupError):
            create(other)
        assert everything(other) == before

    @pytest.mark.parametrize("wrong", ["", "ftp://somewhere/table", "s3://"])
    def test_refuses_an_address_that_is_none(self, wrong: str) -> None:
        with pytest.raises(InvalidInputError):
            create(wrong)


class TestEnable:
    def test_a_table_with_rows(self, uri: str) -> None:
        plain(uri)

        table = memwal.enable(uri, region_spec=UNSHARDED, primary_key=["id"])

        assert table.primary_key == ("id",)
        assert state(table) == {1: 1, 2: 2}
        with table.writer() as writer:
            writer.upsert(rows({2: 22, 3: 3}))
            writer.delete(pa.array([1]))
        assert state(table) == {2: 22, 3: 3}
        table.merge()
        assert state(table) == {2: 22, 3: 3}

    def test_a_table_whose_key_may_be_null(self, uri: str) -> None:
        """As pyarrow makes columns unless told otherwise."""
        schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
        lance.write_dataset(rows({1: 1}).cast(schema), uri)
        before = everything(uri)
        try:
            table = memwal.enable(uri, region_spec=UNSHARDED, primary_key=["id"])
        except MemWalError:
            assert everything(uri) == before
            return
        table.upsert(rows({2: 2}))
        table.merge()
        assert state(table) == {1: 1, 2: 2}

    def test_a_key_that_several_rows_have(self, uri: str) -> None:
        schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
        for ids in ({1: 1, 7: 7}, {7: 8, 9: 9}):
            lance.write_dataset(
                rows(ids).cast(schema), uri, mode="append" if 9 in ids else "create"
            )
        before = everything(uri)
        with pytest.raises(InvalidInputError, match=r"\(7,\)"):
            memwal.enable(uri, primary_key="id")
        assert everything(uri) == before
        assert memwal.enable(uri, primary_key=["id", "n"]).primary_key == ("id", "n")

    def test_with_indexes_it_has(self, uri: str) -> None:
        plain(uri).create_scalar_index("n", "BTREE", name="mine")
        table = memwal.enable(
            uri, region_spec=UNSHARDED, primary_key="id", maintained_indexes=["mine"]
        )
        assert table.base().details.maintained_indexes == ("mine",)

    @pytest.mark.parametrize(
        ("options", "kind"),
        [
            pytest.param({}, TableSetupError, id="no key"),
            pytest.param({"primary_key": ["nope"]}, InvalidInputError, id="unknown key"),
            pytest.param({"primary_key": ""}, InvalidInputError, id="empty key"),
            pytest.param(
                {"primary_key": ["id"], "maintained_indexes": ["nope"]},
                InvalidInputError,
                id="unknown index",
            ),
            pytest.param(
                {"primary_key": ["id"], "region_spec": memwal.RegionSpec.bucket("n", 2)},
                InvalidInputError,
                id="divided by no key column",
            ),
        ],
    )
    def test_refuses_what_does_not_fit_and_writes_nothing(
        self, uri: str, options: dict[str, Any], kind: type[MemWalError]
    ) -> None:
        plain(uri)
        before = everything(uri)

        with pytest.raises(kind):
            memwal.enable(uri, **{"region_spec": UNSHARDED, **options})

        assert everything(uri) == before

    def test_twice_is_refused(self, uri: str) -> None:
        create(uri)
        before = everything(uri)
        with pytest.raises(TableSetupError):
            memwal.enable(uri, region_spec=UNSHARDED)
        assert everything(uri) == before

    def test_does_not_change_the_key(self, uri: str) -> None:
        schema = SCHEMA.set(
            0,
            SCHEMA.field(0).with_metadata({"lance-schema:unenforced-primary-key": "true"}),
        )
        lance.write_dataset(rows({1: 1}).cast(schema), uri, schema=schema)
        before = everything(uri)
        with pytest.raises(InvalidInputError):
            memwal.enable(uri, region_spec=UNSHARDED, primary_key=["n"])
        assert everything(uri) == before
        table = memwal.enable(uri, region_spec=UNSHARDED)
        assert table.primary_key == ("id",)

    def test_without_a_table_says_so(self, uri: str) -> None:
        with pytest.raises(TableSetupError):
            memwal.enable(uri, region_spec=UNSHARDED, primary_key=["id"])
        assert everything(uri) == {}


class TestStoreWithoutPutIfAbsent:
    @pytest.fixture(params=["create", "enable"])
    def set_up(self, request: pytest.FixtureRequest, uri: str) -> Callable[[], object]:
        if request.param == "create":
            return lambda: create(uri)
        plain(uri)
        return lambda: memwal.enable(uri, region_spec=UNSHARDED, primary_key=["id"])

    def test_is_refused_and_nothing_stays(
        self,
        uri: str,
        faults: FaultyStores,
        set_up: Callable[[], object],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        store = faults.of(memwal.Table(memwal.table.TableLocation(uri)).location)
        monkeypatch.setattr(store, "create", store.inner.put)
        before = everything(uri)

        with pytest.raises(UnsupportedStoreError):
            set_up()

        assert everything(uri) == before

    def test_that_cannot_be_written_is_told_apart(
        self, uri: str, faults: FaultyStores, set_up: Callable[[], object]
    ) -> None:
        store = faults.of(memwal.Table(memwal.table.TableLocation(uri)).location)
        store.fail("create", "*", StoreAccessError("no"), times=100)
        before = everything(uri)

        with pytest.raises(StoreAccessError):
            set_up()

        assert everything(uri) == before


class TestOpen:
    def test_without_a_table_says_so(self, uri: str) -> None:
        with pytest.raises(TableSetupError):
            memwal.open(uri)


class Model(LanceModel):
    """Of LanceDB."""

    id: int
    n: int | None


class TestEnableAgain:
    """Another client took MemWAL away."""

    def unset(self, table: memwal.Table) -> None:
        lance.dataset(table.uri).drop_index("__lance_mem_wal")

    @pytest.mark.few(3)
    @pytest.mark.parametrize("given", [False, True])
    @pytest.mark.parametrize(
        "spec",
        [
            memwal.RegionSpec.unsharded(),
            memwal.RegionSpec.bucket("id", 3),
            memwal.RegionSpec.truncate("id", 10),
        ],
        ids=str,
    )
    def test_the_spec_of_the_regions_is_taken(
        self, uri: str, spec: memwal.RegionSpec, given: bool
    ) -> None:
        table = create(uri, region_spec=spec)
        table.upsert(rows(dict.fromkeys(range(9), 1)))
        before = table.base().details.region_specs
        self.unset(table)

        table = memwal.enable(uri, region_spec=spec) if given else memwal.enable(uri)

        assert table.base().details.region_specs == before
        table.upsert(rows({0: 2}))
        assert state(table) == {0: 2} | dict.fromkeys(range(1, 9), 1)
        assert not table.verify().errors

    def test_all_specs_are_taken(self, uri: str) -> None:
        table = create(uri)
        table.upsert(rows({1: 1}))
        memwal.add_region_spec(uri, memwal.RegionSpec.bucket("id", 3))
        table = memwal.open(uri)
        table.upsert(rows({1: 2}))
        before = table.base().details.region_specs
        self.unset(table)

        table = memwal.enable(uri)

        assert table.base().details.region_specs == before
        assert len(before) == 2
        assert table.region_spec()[0] == 2

    @pytest.mark.parametrize("spec", ["unsharded", "bucket:id:4", None])
    @pytest.mark.parametrize("known", [True, False])
    def test_another_spec_is_refused(self, uri: str, spec: str | None, known: bool) -> None:
        table = create(uri, region_spec=memwal.RegionSpec.bucket("id", 3))
        table.upsert(rows(dict.fromkeys(range(9), 1)))
        self.unset(table)
        if not known:
            forget_versions(uri)
            if spec == "bucket:id:4":
                spec = "identity:id"

        with pytest.raises(InvalidInputError):
            memwal.enable(uri, region_spec=spec)

        assert memwal.open(uri).base().index is None

    def test_a_spec_that_no_version_has_must_be_given(self, uri: str) -> None:
        table = create(uri, region_spec=memwal.RegionSpec.bucket("id", 3))
        table.upsert(rows(dict.fromkeys(range(9), 1)))
        self.unset(table)
        forget_versions(uri)

        with pytest.raises(TableSetupError, match=f"memwal enable {uri} --regions"):
            memwal.enable(uri)

        table = memwal.enable(uri, region_spec="bucket:id:3")
        table.upsert(rows({0: 2}))
        assert state(table) == {0: 2} | dict.fromkeys(range(1, 9), 1)
        assert not table.verify().errors


def forget_versions(uri: str) -> None:
    lance.dataset(uri).cleanup_old_versions(timedelta(0))


@pytest.mark.parametrize(
    "schema",
    [
        pa.table({"id": [1], "n": [1]}),
        pl.DataFrame({"id": [1], "n": [1]}),
        pd.DataFrame({"id": [1], "n": [1]}),
        Model,
    ],
    ids=lambda schema: type(schema).__module__,
)
def test_a_schema_of_something_else_and_a_spec_as_text(tmp_path: Path, schema: Any) -> None:
    table = memwal.create(tmp_path / "t.lance", schema, primary_key="id", region_spec="bucket:id:4")
    assert table.schema.names == ["id", "n"]
    assert table.scan().count_rows() == 0
    assert table.region_spec()[1] == memwal.RegionSpec.bucket("id", 4)
    assert add_region_spec(table.uri, "unsharded").region_spec()[1] == UNSHARDED


def test_what_has_no_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError):
        memwal.create(
            tmp_path / "t.lance",
            {"id": pa.int64()},  # type: ignore[arg-type]
            primary_key=["id"],
            region_spec=None,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said at once: Lance would try again for seconds."""
    file = tmp_path / "file"
    file.write_text("x")
    monkeypatch.setattr(lance, "LanceDataset", None)
    for call in (
        memwal.open,
        lambda uri: memwal.enable(uri, region_spec=None),
        lambda uri: memwal.create(uri, WIDE, primary_key=["id"], region_spec=None),
    ):
        with pytest.raises(TableSetupError):
            call(file)
