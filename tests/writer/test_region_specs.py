"""Writers of tables that are divided by hand, by columns beside the key, and anew."""

from pathlib import Path
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from support.data.tables import SCHEMA, MakeTable, keys, manifest, rows, state

import memwal
from memwal import RegionSpec
from memwal.errors import (
    InvalidInputError,
    PartialWriteError,
    RegionFencedError,
    RegionSealedError,
    TableSetupError,
)
from memwal.region.router import bucket_region_id


class TestByHand:
    @pytest.fixture
    def table(self, tmp_path: Path) -> memwal.Table:
        return memwal.create(str(tmp_path / "t"), SCHEMA, primary_key=["id"], region_spec=None)

    def test_rows_go_to_the_region_that_is_named(self, table: memwal.Table) -> None:
        first, second = uuid4(), uuid4()
        for region, values in ((first, {1: 1, 2: 2}), (second, {3: 3})):
            with table.writer(region=region) as writer:
                writer.upsert(rows(values))
                writer.delete(keys(2))
                writer.upsert(
                    pa.table({"id": [1]} if region == first else {"id": [3]}), partial=True
                )
        assert state(table) == {1: 1, 3: 3}
        assert table.region_ids() == sorted([first, second])
        assert manifest(table, first).spec_id == 0
        table.merge()
        assert state(table) == {1: 1, 3: 3}

    def test_without_a_name_there_is_no_writer(self, table: memwal.Table) -> None:
        with pytest.raises(TableSetupError):
            table.writer()

    def test_a_table_with_a_spec_has_none(self, make_table: MakeTable) -> None:
        with pytest.raises(TableSetupError):
            make_table(buckets=2).writer(region=uuid4())


class TestColumnsBesideTheKey:
    SCHEMA = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("at", pa.timestamp("us")),
            pa.field("n", pa.int64()),
        ]
    )

    @pytest.fixture
    def table(self, tmp_path: Path) -> memwal.Table:
        return memwal.create(
            str(tmp_path / "t"),
            self.SCHEMA,
            primary_key=["id"],
            region_spec=RegionSpec.year("at", immutable=True),
        )

    def rows(self, *values: tuple[int, int, int]) -> pa.Table:
        day = 86_400_000_000
        return pa.table(
            {
                "id": [key for key, _, _ in values],
                "at": pa.array([year * 366 * day for _, year, _ in values], pa.timestamp("us")),
                "n": [n for _, _, n in values],
            },
            schema=self.SCHEMA,
        )

    def test_deletes_give_them_with_the_key(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(self.rows((1, 0, 1), (2, 1, 2), (3, 2, 3), (4, 2, 4)))
            assert len(writer.claims()) == 3
            writer.delete(self.rows((2, 1, 0), (3, 2, 0)).select(["at", "id"]))
            assert sorted(writer.scan().to_table().column("id").to_pylist()) == [1, 4]
            with pytest.raises(InvalidInputError, match=r"\bat\b"):
                writer.delete(pa.table({"id": [1]}))
            with pytest.raises(InvalidInputError):
                writer.delete(pa.array([1]))
        assert sorted(table.scan().to_table().column("id").to_pylist()) == [1, 4]

    @pytest.mark.parametrize(
        ("spec", "names"),
        [
            (RegionSpec.bucket("id", 2, immutable=True), ["id"]),
            (RegionSpec.multi_bucket(["n", "id"], 2, immutable=True), ["id", "n"]),
        ],
        ids=["the key", "the key and another"],
    )
    def test_a_promised_field_may_have_key_columns(
        self, tmp_path: Path, spec: RegionSpec, names: list[str]
    ) -> None:
        table = memwal.create(
            str(tmp_path / "t"), self.SCHEMA, primary_key=["id"], region_spec=spec
        )
        rows = self.rows(*((key, 0, key % 3) for key in range(8)))
        with table.writer() as writer:
            writer.upsert(rows)
            assert len(writer.claims()) == 2
            writer.delete(where="id = 0")
            writer.delete(rows.slice(1, 3).select(names))
            if names == ["id"]:
                writer.delete([4])
            else:
                with pytest.raises(InvalidInputError, match=r"\bn\b"):
                    writer.delete(pa.table({"id": [4]}))
                writer.delete({"id": [4], "n": [1]})
            writer.apply(deletes=rows.slice(5, 1).select(names), source="s", version=1)
        table.delete(where="id = 6")
        assert table.scan(columns=["id"]).to_pylist() == [{"id": 7}]

    def test_failures_tell_which_deletes_were_not_done(self, table: memwal.Table) -> None:
        with table.writer() as writer:
            writer.upsert(self.rows((1, 0, 1), (2, 1, 2), (3, 0, 3)))
            (fenced,) = [
                i for i, held in writer.claims().items() if held.memtables[0].rows.num_rows == 2
            ]
            other = table.writer(region_ids=[fenced])
            other.upsert(self.rows((5, 0, 5)))
            with pytest.raises(PartialWriteError) as caught:
                writer.delete(self.rows((2, 1, 0), (1, 0, 0), (3, 0, 0)))
            (failure,) = caught.value.failures
            assert failure.region_id == fenced
            assert failure.rows.to_pylist() == [1, 2]
            other.close()
            with pytest.raises(RegionFencedError):
                writer.close()
        assert sorted(table.scan().to_table().column("id").to_pylist()) == [1, 3, 5]


class TestDividedAnew:
    def test_an_open_writer_cannot_go_on_the_old_way(self, tmp_path: Path) -> None:
        """Not even in a region of the old spec that did not exist when the others were sealed."""
        table = memwal.create(
            str(tmp_path / "t"), SCHEMA, primary_key=["id"], region_spec="identity:id"
        )
        old = table.writer()
        old.upsert(rows({1: 1}))
        old.flush()
        memwal.add_region_spec(table.uri, RegionSpec.bucket("id", 2))

        with pytest.raises(RegionSealedError):
            old.upsert(rows({2: 2}))
        old.abort()
        with table.writer() as writer:
            writer.upsert(rows({1: 3, 2: 2}))
        assert state(table) == {1: 3, 2: 2}
        table.merge()
        assert state(table) == {1: 3, 2: 2}

    def test_ids_of_a_first_bucket_spec_are_those_of_lance(self, make_table: MakeTable) -> None:
        table = make_table(buckets=2)
        with table.writer() as writer:
            writer.upsert(rows({n: n for n in range(20)}))
            held: set[UUID] = set(writer.claims())
        assert held == {bucket_region_id(0), bucket_region_id(1)}
